"""What Ray says of a death becomes a sentence that a person can read."""

import pytest

from rollbook.adapters.ray.border import cause_of_death

CREATION = """The actor died because of an error raised in its creation task, \x1b[36mray::m:A.__init__()\x1b[39m (pid=7
  File "actor.py", line 62, in __init__
    self._publisher = Publisher.from_env(environ)
rollbook.errors.PublisherMisconfigured: ROLLBOOK_NATS_URL is not set
"""
MISCONFIGURED = "rollbook.errors.PublisherMisconfigured: ROLLBOOK_NATS_URL is not set"
DEATH = "x\n\tThe actor is dead because its process has died. \x1b[36mEnd of file.\x1b[39m Some common causes: x"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (CREATION, f"an error raised in its creation task: {MISCONFIGURED}"),
        (DEATH, "its process has died. End of file."),
        ("something\n else", "something else"),
    ],
)
def test_the_part_that_says_how_it_died_is_told(said, told):
    assert cause_of_death(Exception(said)) == told
