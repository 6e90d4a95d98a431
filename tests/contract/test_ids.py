"""What every `Ids` must do, asked of the real ones and of the seeded ones."""

import random
import re
import uuid

import pytest

from rollbook.adapters.ids import UuidV7
from rollbook.adapters.memory.ids import SeededIds

MANY = 20_000
SPELLED = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@pytest.fixture(params=["seeded", "uuid7"])
def make_ids(request):
    """Makes one maker of ids after another, as processes do."""
    rng = random.Random(1)
    return UuidV7 if request.param == "uuid7" else lambda: SeededIds(random.Random(rng.random()))


def test_every_id_is_a_uuid7_in_lower_case(make_ids):
    ids = make_ids()
    for made in (ids.new() for _ in range(1000)):
        assert SPELLED.fullmatch(made)
        parsed = uuid.UUID(made)
        assert (parsed.version, parsed.variant, str(parsed)) == (7, uuid.RFC_4122, made)


def test_ids_rise_and_none_comes_twice(make_ids):
    ids = make_ids()
    made = [ids.new() for _ in range(MANY)]
    assert made == sorted(made)
    assert len(set(made)) == MANY


def test_two_makers_never_meet(make_ids):
    one, other = make_ids(), make_ids()
    made = [ids.new() for _ in range(MANY) for ids in (one, other)]
    assert len(set(made)) == 2 * MANY
