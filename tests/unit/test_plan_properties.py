"""From any history and any listing, following the plan ends where it should, and harms nobody on the way."""

from hypothesis import given
from hypothesis import strategies as st
from support.core import FLEET, folded
from support.histories import HISTORIES
from support.plans import WORKERS, ListProxy, listings, registrations, url_of

from rollbook.events import RegistrationFact
from rollbook.projections.deciding.plan import Add
from rollbook.projections.ports import Entry

MOST_STEPS = 40


def follow(proxy):
    """Until the plan is empty; the actions on the way."""
    done = []
    for _ in range(MOST_STEPS):
        actions = proxy.step()
        if not actions:
            return done
        done.extend(actions)
    raise AssertionError(f"no end after {MOST_STEPS} steps: {done[-3:]}")


def facts_of(history):
    """The ledger gets its own facts."""
    return [fact for fact in history if not isinstance(fact, RegistrationFact)]


@given(HISTORIES, registrations(), listings())
def test_with_tags_it_converges_and_harms_nobody(history, known, entries):
    """[I1] [I2] [I3] [I4] [I11]."""
    state = folded(*facts_of(history), *known)
    proxy = ListProxy(state, entries, tags=True)
    foreign = [entry for entry in entries if entry.fleet != FLEET]
    done = follow(proxy)
    assert proxy.listed() == sorted(proxy.wanted)
    assert [entry for entry in proxy.entries if entry.fleet != FLEET] == foreign
    assert not any(needed for _, needed in proxy.removed)
    assert all((action.worker, action.incarnation) in proxy.wanted for action in done if isinstance(action, Add))
    lives = state.ledger.look("router").registrations
    assert sorted((name, life) for name, told in lives.items() for life in told) == proxy.listed()


@given(HISTORIES, registrations(), st.lists(WORKERS, unique=True), st.integers(0, 3))
def test_without_tags_the_urls_in_the_log_say_what_is_ours(history, known, there, strangers):
    """[I1] [I4] [I11]: whatever of ours is listed was registered by us, so the log has its URL."""
    known_urls = {fact.url for fact in known}
    entries = [Entry(url=url_of(name), handle=name) for name in there if url_of(name) in known_urls]
    foreign = [Entry(url=f"http://foreign-{number}:1", handle=f"f{number}") for number in range(strangers)]
    proxy = ListProxy(folded(*facts_of(history), *known), [*entries, *foreign], tags=False)
    follow(proxy)
    assert proxy.listed() == sorted(proxy.wanted)
    assert [entry for entry in proxy.entries if entry.handle.startswith("f")] == foreign
    assert not any(needed for _, needed in proxy.removed)
