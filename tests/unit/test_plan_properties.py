"""From any history and any listing, following the plan ends where it should, and harms nobody on the way."""

from hypothesis import given
from hypothesis import strategies as st
from support.core import FLEET, folded
from support.histories import HISTORIES, NAMES
from support.plans import ListProxy, url_of

from rollbook.events import Registered, RegistrationFact
from rollbook.projections.plan import Add
from rollbook.projections.ports import Entry

WORKERS = st.sampled_from(NAMES)
LIVES = st.integers(1, 5)
MOST_STEPS = 40


@st.composite
def listings(draw):
    """Entries of ours (of any life, also several of one, also at other URLs) and of others; any handles."""
    entries = []
    for number in range(draw(st.integers(0, 8))):
        kind = draw(st.integers(0, 3))
        worker, incarnation = draw(WORKERS), draw(LIVES)
        elsewhere = f"http://foreign-{number}:1"
        if kind == 0:
            entries.append(Entry(url=elsewhere, handle=str(number)))
        elif kind == 1:
            entries.append(Entry(url=elsewhere, handle=str(number), fleet="g", worker=worker, incarnation=incarnation))
        else:
            url = url_of(worker) if kind == 2 else f"http://old-{number}:1"
            entries.append(Entry(url=url, handle=str(number), fleet=FLEET, worker=worker, incarnation=incarnation))
    return entries


@st.composite
def registrations(draw):
    """What the log may say of lives at the proxy; with one URL for each worker."""
    lines = draw(st.lists(st.tuples(WORKERS, LIVES), max_size=8))
    return [Registered(proxy="router", worker=name, incarnation=life, url=url_of(name)) for name, life in lines]


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
