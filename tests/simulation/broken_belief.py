"""Broken builds that get wrong what is true: the fold and the gates."""

import msgspec

from rollbook.projections.deciding import gates, outdated
from rollbook.projections.lanes.admission import Admission
from rollbook.projections.lanes.desk import Desk
from rollbook.projections.log.projector import Projector
from rollbook.projections.state import roster, transitions
from rollbook.projections.state.transitions import Relation
from rollbook.projections.state.worker import Worker

# ---------------------------------------------------------------- the fold


def stale_facts_count(patch):
    """[I2, I3] the incarnation check is skipped"""
    patch.setattr(roster, "relate", lambda number, known: Relation.SAME if number <= known else Relation.NEWER)


def the_dead_rise(patch):
    """[I2] an Up counts whatever its author has seen"""
    rule = transitions.rule
    patch.setattr(roster, "rule", lambda *about: msgspec.structs.replace(rule(*about), if_seen=False))


def repeated_facts_count(patch):
    """[I2] a repeated id is folded again"""
    patch.setattr(roster, "repeated", lambda *_: False)


def gaps_are_passed_over(patch):
    """[I5] what a reader lost is not read again"""
    fold = Projector._fold

    def blind(self, batch):
        if batch:
            self.state.sequence = max(self.state.sequence, batch[0].sequence - 1)
        return fold(self, batch)

    patch.setattr(Projector, "_fold", blind)


# ---------------------------------------------------------------- gates


def no_second_look(patch):
    """[I2] the roster is not asked again after the intent"""
    patch.setattr(Desk, "unwanted", lambda self, *about: None)


def half_a_cell_is_enough(patch):
    """[I2] a cell is registered before all its ranks serve"""
    patch.setattr(gates, "_cell_gap", lambda *about: None)


def weights_do_not_matter(patch):
    """old weights are let in"""
    patch.setattr(gates, "weights", lambda *about: None)


def weights_survive_a_restart(patch):
    """a life is let in for the weights of the one before it"""
    begin = Worker.begin_life

    def with_weights(self, *about):
        held, said = self.weights, self.weights_sequence
        begin(self, *about)
        self.weights, self.weights_sequence = held, said

    patch.setattr(Worker, "begin_life", with_weights)


def what_was_given_up_is_ahead(patch):
    """a version above the published one is let in whenever it was loaded"""
    weights = gates.weights

    def blind(book, policy, worker):
        bar = book.bars.get(worker.pool or "")
        ahead = bar is not None and worker.weights is not None and worker.weights > bar.version
        return None if ahead else weights(book, policy, worker)

    patch.setattr(gates, "weights", blind)


def all_leave_at_once(patch):
    """[I4] old weights leave before anybody with new ones is there"""
    of_pool = outdated._of_pool

    def removed(state, policy, proxy, pool):
        pools = {name: msgspec.structs.replace(one, stale="remove") for name, one in policy.pools.items()}
        return of_pool(state, msgspec.structs.replace(policy, pools=pools), proxy, pool)

    patch.setattr(outdated, "_of_pool", removed)


def nobody_leaves_for_its_weights(patch):
    """[I1] old weights stay where they are to be removed"""
    patch.setattr(outdated, "_of_pool", lambda *about: {})


def half_of_a_pair_is_enough(patch):
    """a worker is let in that nobody can end requests with"""
    patch.setattr(gates, "pair", lambda *about: None)


def readiness_does_not_matter(patch):
    """nobody asks the worker before it is added"""

    async def ready(self, *about):
        return None

    patch.setattr(Admission, "ready", ready)


def nobody_asks_who_answers(patch):
    """a stranger on a reused port is taken for the worker"""
    probe = Admission._probe

    async def anybody(self, url, path, identity):
        return await probe(self, url, path, None)

    patch.setattr(Admission, "_probe", anybody)


def addresses_are_cached(patch):
    """[I6] the provider is asked once per worker"""
    locate = Admission.locate
    cache = {}

    async def cached(self, name, incarnation, canonical):
        if (id(self), name) not in cache:
            cache[id(self), name] = await locate(self, name, incarnation, canonical)
        return cache[id(self), name]

    patch.setattr(Admission, "locate", cached)


MUTATIONS = (
    stale_facts_count,
    the_dead_rise,
    repeated_facts_count,
    gaps_are_passed_over,
    no_second_look,
    half_a_cell_is_enough,
    weights_do_not_matter,
    weights_survive_a_restart,
    what_was_given_up_is_ahead,
    all_leave_at_once,
    nobody_leaves_for_its_weights,
    half_of_a_pair_is_enough,
    readiness_does_not_matter,
    nobody_asks_who_answers,
    addresses_are_cached,
)
