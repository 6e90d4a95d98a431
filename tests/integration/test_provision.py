"""The fleet's stream is made once, mended where that is harmless, and refused where it would lose facts."""

import asyncio

import pytest

from rollbook.adapters.jetstream.api import question
from rollbook.adapters.jetstream.provision import provision, wanted
from rollbook.events import stream_name
from rollbook.projections.ports import LogMisconfigured

pytestmark = pytest.mark.integration

TIMEOUT = 20.0


async def config(client, name):
    return (await question(client, f"STREAM.INFO.{name}", timeout=TIMEOUT))["config"]


async def make(client, fleet, **settings):
    body = wanted(fleet, 1) | settings
    await question(client, f"STREAM.CREATE.{body['name']}", body, timeout=TIMEOUT)


async def test_makes_the_stream_as_the_design_says(nats_client, fleet):
    await provision(nats_client, fleet, timeout=TIMEOUT)
    made = await config(nats_client, stream_name(fleet))
    want = wanted(fleet, 1)
    assert {key: made[key] for key in want} == want
    assert made.get("allow_msg_ttl", False) is False


async def test_is_idempotent_also_when_two_start_together(nats_client, fleet):
    await asyncio.gather(*(provision(nats_client, fleet, timeout=TIMEOUT) for _ in range(5)))
    before = await config(nats_client, stream_name(fleet))
    await provision(nats_client, fleet, timeout=TIMEOUT)
    assert await config(nats_client, stream_name(fleet)) == before


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"storage": "memory"}, "storage is 'memory' and must be 'file'"),
        ({"retention": "interest"}, "retention is 'interest' and must be 'limits'"),
        ({"retention": "workqueue"}, "retention is 'workqueue' and must be 'limits'"),
        ({"max_age": 3600_000_000_000}, "max_age is 3600000000000 and must be 0"),
        ({"max_msgs_per_subject": 1}, "max_msgs_per_subject is 1 and must be -1"),
        ({"max_msgs": 1000, "discard": "old"}, "max_msgs is 1000 and must be -1, or discard 'new'"),
        ({"max_bytes": 1_000_000, "discard": "old"}, "max_bytes is 1000000 and must be -1, or discard 'new'"),
        ({"allow_msg_ttl": True}, "allow_msg_ttl is True and must be false"),
        ({"allow_msg_counter": True, "allow_atomic": False}, "allow_msg_counter is True and must be false"),
        ({"persist_mode": "async", "allow_atomic": False}, "persist_mode is 'async' and must be 'default'"),
        ({"subject_transform": {"src": ">", "dest": "x.>"}}, "subject_transform is"),
        ({"sources": [{"name": "OTHER"}]}, "sources is"),
        ({"mirror": {"name": "OTHER"}, "subjects": [], "allow_atomic": False}, "mirror is"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_refuses_what_loses_facts(nats_client, fleet, settings, told):
    if settings.get("allow_msg_counter"):
        settings = {**settings, "discard": "old"}
    await make(nats_client, fleet, **settings)
    before = await config(nats_client, stream_name(fleet))
    with pytest.raises(LogMisconfigured) as error:
        await provision(nats_client, fleet, timeout=TIMEOUT)
    assert stream_name(fleet) in str(error.value)
    assert told in str(error.value)
    assert await config(nats_client, stream_name(fleet)) == before


async def test_refuses_a_sealed_stream(nats_client, fleet):
    await make(nats_client, fleet)
    name = stream_name(fleet)
    sealed = await config(nats_client, name) | {"sealed": True}
    await question(nats_client, f"STREAM.UPDATE.{name}", sealed, timeout=TIMEOUT)
    with pytest.raises(LogMisconfigured, match="sealed is True and must be false"):
        await provision(nats_client, fleet, timeout=TIMEOUT)


async def test_refuses_subjects_that_are_not_facts(nats_client, fleet):
    await make(nats_client, fleet, subjects=[f"rollbook.{fleet}.>"])
    with pytest.raises(LogMisconfigured, match=r"subjects has \['rollbook\..*\.>'\] and must be"):
        await provision(nats_client, fleet, timeout=TIMEOUT)


async def test_says_when_another_stream_has_the_subjects(nats_client, fleet):
    body = wanted(fleet, 1) | {"name": f"OTHER-{fleet}"}
    await question(nats_client, f"STREAM.CREATE.{body['name']}", body, timeout=TIMEOUT)
    with pytest.raises(LogMisconfigured, match="cannot be made: subjects overlap"):
        await provision(nats_client, fleet, timeout=TIMEOUT)


async def test_mends_what_is_harmless_and_keeps_the_rest(nats_client, fleet):
    fewer = wanted(fleet, 1)["subjects"][:3]
    await make(
        nats_client,
        fleet,
        subjects=fewer,
        discard="old",
        deny_delete=False,
        allow_direct=False,
        allow_atomic=False,
        allow_rollup_hdrs=True,
        max_msg_size=1000,
        duplicate_window=1_000_000_000,
        no_ack=True,
        compression="s2",
        metadata={"team": "rl"},
    )
    await provision(nats_client, fleet, timeout=TIMEOUT)
    made = await config(nats_client, stream_name(fleet))
    want = wanted(fleet, 1)
    assert {key: made[key] for key in want} == want
    assert not made.get("allow_rollup_hdrs")
    assert not made.get("no_ack")
    assert made["compression"] == "s2"
    assert made["metadata"]["team"] == "rl"


async def test_keeps_a_quota_that_refuses_new_facts(nats_client, fleet):
    await make(nats_client, fleet, max_bytes=10_000_000)
    await provision(nats_client, fleet, timeout=TIMEOUT)
    assert (await config(nats_client, stream_name(fleet)))["max_bytes"] == 10_000_000


async def test_says_when_it_cannot_be_mended(nats_client, fleet):
    with pytest.raises(LogMisconfigured, match="cannot be made: replicas > 1 not supported"):
        await provision(nats_client, fleet, replicas=3, timeout=TIMEOUT)
    await make(nats_client, fleet)
    with pytest.raises(LogMisconfigured, match="num_replicas is 1 and must be 3"):
        await provision(nats_client, fleet, replicas=3, timeout=TIMEOUT)
