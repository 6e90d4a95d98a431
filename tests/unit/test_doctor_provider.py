"""What `doctor` says of whoever knows the addresses: how many workers, and of how many it can say that they live."""

from rollbook.adapters.doctor.findings import Findings
from rollbook.adapters.doctor.fleet import provider
from rollbook.adapters.settings import Config, Settings, StaticProvider

A, B = "rollout-0-0", "rollout-1-0"


async def told(folder, settings):
    findings = Findings()
    await provider(findings, Config(settings=Settings(fleet="f", provider=settings), file=folder / "rollbook.toml"), {})
    [found] = findings.found
    return str(found.state), found.told


async def test_the_configuration_knows_addresses_and_nobodys_life(tmp_path):
    settings = StaticProvider(workers={A: {"primary": "127.0.0.2:1"}, B: {"primary": "127.0.0.2:2"}})
    assert await told(tmp_path, settings) == (
        "ok",
        "the configuration knows 2 workers; whether they are alive it cannot tell",
    )
    assert await told(tmp_path, StaticProvider()) == ("ok", "the configuration knows 0 workers, 0 of them alive")


async def test_a_file_is_named_and_read_now(tmp_path):
    settings = StaticProvider(file="workers.toml")
    state, text = await told(tmp_path, settings)
    assert state == "failed"
    assert f"where the workers are is unknown: {tmp_path / 'workers.toml'}: cannot be read" in text
    (tmp_path / "workers.toml").write_text(f'[workers.{A}]\nprimary = "127.0.0.2:1"\n')
    assert await told(tmp_path, settings) == (
        "ok",
        "the file workers.toml knows 1 worker; whether they are alive it cannot tell",
    )
