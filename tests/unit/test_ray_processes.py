"""What is known of a killed actor's process on a Ray that cannot be asked about it."""

from ray._private import state

from rollbook.adapters.ray.processes import is_gone


def test_without_a_way_to_ask_rays_own_word_has_to_do(monkeypatch):
    monkeypatch.delattr(state.GlobalState, "_connect_and_get_accessor")
    assert is_gone(object())
