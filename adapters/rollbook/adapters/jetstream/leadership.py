"""The right to act for a fleet, as a claim in a key-value bucket that expires unless it is renewed.

The claim is one key. It is taken, renewed and given back only with the revision that was seen before, so two can never
both succeed, and the revision at which it was taken is the epoch: the bucket counts on, whatever expires or restarts.

A renewal whose answer was lost may have been stored. So when a renewal is refused, the claim is read before it is given
up: with our own token in it, it is still ours. How long a claim is good is counted on a clock that never goes back from
the moment the last successful renewal was SENT, so its owner stops before the bucket lets others in.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from typing import Any, Final

import msgspec
import structlog

from rollbook.adapters.jetstream import api
from rollbook.adapters.jetstream.api import Refused, publish, question
from rollbook.adapters.jetstream.client import Client
from rollbook.adapters.jetstream.provision import replicate
from rollbook.events import validate_name
from rollbook.events.times import rfc3339
from rollbook.projections.ending import end
from rollbook.projections.ports import AlreadyLed, LogMisconfigured, LogUnavailable

_log = structlog.get_logger(__name__)

LEASE: Final = 5.0
"""Seconds within which somebody else acts after its owner has died."""
CLAIM: Final = 0.9
"""The part of a lease that a claim lasts which is not renewed; the rest is for who waits to see it and to take over."""
RENEWALS: Final = 5
"""Within one lease: most of it is always left, and two that fail in a row stop no admin call."""
LOOKS: Final = 20
"""Within one lease, of those who wait for it to be free."""
MOST_PAUSE: Final = 0.2
"""Seconds between two such looks: what is given back is not left lying."""
_OPERATION: Final = "KV-Operation"


def _now() -> float:
    """Seconds that also pass while the machine sleeps, where the system counts them: the bucket's time goes on then."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class _Claim(msgspec.Struct, frozen=True):
    owner: str
    since: str
    token: str


class _Lost(Exception):
    """The claim is somebody else's, or gone. Never leaves this module."""


class JetStreamLeadership:
    """One contender for one fleet, in the bucket `ROLLBOOK_<fleet>_leader`. Belongs to the client's loop.

    `lease` (seconds, at least 1) should be the same for all contenders of a fleet.
    """

    def __init__(self, client: Client, fleet: str, *, replicas: int = 1, lease: float = LEASE) -> None:
        self._client = client
        self._fleet = validate_name("fleet", fleet)
        bucket = f"ROLLBOOK_{fleet}_leader"
        self._stream = f"KV_{bucket}"
        self._key = f"$KV.{bucket}.leader"
        self._replicas = replicas
        self._lease = lease
        self._lasts = lease * CLAIM
        self._timeout = lease / 3
        self._token = secrets.token_hex(8)
        self._claim: _Claim | None = None
        """What is held, or may be: the answer to an attempt may be what is lost."""
        self._revision = 0
        self._good_until = 0.0
        self._keeper: asyncio.Task[None] | None = None
        self._lost: asyncio.Future[str] | None = None

    async def acquire(self, owner: str) -> int:
        """Take it and return the epoch, higher than every earlier one. Raises `AlreadyLed` or `LogUnavailable`."""
        revision, holder = await self._holder()
        held = self._keeper is not None and not self._keeper.done()
        if holder is None or (holder.token == self._token and not held):  # ours, if an earlier answer was lost
            await self._make_bucket()
            self._claim, self._good_until = _Claim(owner, rfc3339(time.time()), self._token), 0.0
            try:
                epoch = await self._write(self._claim, revision)
            except Refused as exc:
                self._claim = None
                if exc.err_code not in api.WRONG_SEQUENCE:
                    raise LogUnavailable(f"{self._key}: {exc.description}") from exc
                _, holder = await self._holder()  # somebody was faster
            else:
                self._hold(self._claim)
                return epoch
        if holder is None:
            raise LogUnavailable(f"the leadership of fleet {self._fleet!r} changes hands right now; try again")
        raise AlreadyLed(self._fleet, holder.owner, holder.since)

    def left(self) -> float:
        """Seconds for which it is certainly still held [I7]; 0 or less if it is not."""
        return self._good_until - _now() if self._claim is not None else 0.0

    async def free(self) -> None:
        """Wait until it may be had: given back or run out. Waits through outages, too."""
        told = False
        while True:
            try:
                _, holder = await self._holder()
                if holder is None:
                    return
            except LogUnavailable as exc:
                if not told:
                    _log.warning("leadership.not_asked", fleet=self._fleet, error=str(exc))
                told = True
            else:
                told = False
            await asyncio.sleep(min(self._lease / LOOKS, MOST_PAUSE))

    async def lost(self) -> str:
        """Wait until it is lost without having been released; return why. Waits for ever if it is not held."""
        if self._lost is None:
            self._lost = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._lost)

    async def release(self) -> bool:
        """Give it back, so that the next one need not wait; return whether it was held and is free now.

        Never raises.
        """
        claim, self._claim = self._claim, None
        if self._keeper is not None:
            await end(self._keeper, patience=self._timeout)
            self._keeper = None
        if claim is None:
            return False
        self._lost = None
        try:
            return await self._give_back(claim)
        except (LogUnavailable, Refused) as exc:
            _log.warning("leadership.not_released", fleet=self._fleet, free_after=self._lasts, error=str(exc))
            return False

    async def holder(self) -> tuple[str, str] | None:
        """Who holds it, and since when (RFC 3339, by its own clock); None if it is free. Raises `LogUnavailable`."""
        _, holder = await self._holder()
        return None if holder is None else (holder.owner, holder.since)

    # ------------------------------------------------------------ holding

    def _hold(self, claim: _Claim) -> None:
        self._claim = claim
        if self._lost is None or self._lost.done():
            self._lost = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.get_running_loop().create_task(self._keep(claim), name=f"leadership of {self._fleet}")
        self._keeper.add_done_callback(self._kept)

    def _kept(self, keeper: asyncio.Task[None]) -> None:
        """A claim that nobody renews any more is lost, whatever ended its keeper."""
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            self._lose(f"renewing it failed: {error!r}")

    async def _keep(self, claim: _Claim) -> None:
        """Renew the claim until it is lost."""
        pause = self._lease / RENEWALS
        told = False
        while True:
            left = self._good_until - _now()
            if left <= 0:
                self._lose(f"it could not be renewed within {self._lasts:g} s")
                return
            await asyncio.sleep(min(pause, left))
            try:
                # An answer that comes after the claim has run out is worth nothing.
                async with asyncio.timeout(max(self._good_until - _now(), 0)):
                    await self._renew(claim)
                pause, told = self._lease / RENEWALS, False
            except _Lost as exc:
                self._lose(str(exc))
                return
            except (LogUnavailable, TimeoutError) as exc:
                pause = self._lease / 20
                if not told:
                    _log.warning("leadership.not_renewed", fleet=self._fleet, error=str(exc) or "no answer in time")
                told = True

    async def _renew(self, claim: _Claim) -> None:
        try:
            await self._write(claim, self._revision)
        except Refused as exc:
            self._revision = await self._still_ours(claim, exc)
            try:
                await self._write(claim, self._revision)
            except Refused as again:
                raise _Lost(f"it was changed while it was renewed ({again.description})") from again

    async def _still_ours(self, claim: _Claim, refused: Refused) -> int:
        """The revision of our own claim. Raises `_Lost` if another one stands there, or none."""
        if refused.err_code not in api.WRONG_SEQUENCE:
            raise LogUnavailable(f"{self._key}: {refused.description}") from refused
        revision, holder = await self._holder()
        if holder is None:
            raise _Lost("the claim ran out, or was removed")
        if holder.token != claim.token:
            raise _Lost(f"{holder.owner} took it at {holder.since}")
        return revision

    async def _give_back(self, claim: _Claim) -> bool:
        headers = {_OPERATION: "DEL", api.EXPECTED_SEQUENCE: str(self._revision)}
        try:
            await publish(self._client, self._key, b"", headers, timeout=self._timeout)
        except Refused as exc:
            # The last renewal may have been stored although its answer was lost or not waited for.
            try:
                headers[api.EXPECTED_SEQUENCE] = str(await self._still_ours(claim, exc))
            except _Lost:
                return False
            await publish(self._client, self._key, b"", headers, timeout=self._timeout)
        return True

    def _lose(self, reason: str) -> None:
        self._claim = None
        _log.error("leadership.lost", fleet=self._fleet, reason=reason)
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(reason)

    # ------------------------------------------------------------ the bucket

    async def _write(self, claim: _Claim, revision: int) -> int:
        """Store the claim if the key stands at `revision`; return the new one. Raises `Refused`, `LogUnavailable`."""
        sent = _now()
        headers = {api.EXPECTED_SEQUENCE: str(revision)}
        ack = await publish(self._client, self._key, msgspec.json.encode(claim), headers, timeout=self._timeout)
        self._revision, self._good_until = ack.seq, sent + self._lasts
        return ack.seq

    async def _holder(self) -> tuple[int, _Claim | None]:
        """The key's revision (0 if it has none), and who holds it."""
        try:
            which = {"last_by_subj": self._key}
            answer = await question(self._client, f"STREAM.MSG.GET.{self._stream}", which, timeout=self._timeout)
        except Refused as exc:
            if exc.err_code in {api.NO_STREAM, api.NO_MESSAGE}:
                return 0, None
            raise LogUnavailable(f"{self._key}: {exc.description}") from exc
        message = answer["message"]
        value = base64.b64decode(message.get("data") or "")
        if not value:
            return message["seq"], None  # given back, or a mark that the server left when it expired
        try:
            return message["seq"], msgspec.json.decode(value, type=_Claim)
        except (msgspec.MsgspecError, RecursionError):
            return message["seq"], _Claim("somebody whose claim cannot be read", message["time"], "")

    async def _make_bucket(self) -> None:
        config: dict[str, Any] = {
            "name": self._stream,
            "description": f"Rollbook: who leads fleet {self._fleet}",
            "subjects": [f"{self._key.rpartition('.')[0]}.>"],
            "storage": "file",
            "discard": "new",
            "max_msgs_per_subject": 1,
            "max_age": int(self._lasts * api.NANO),
            "duplicate_window": int(self._lasts * api.NANO),
            "num_replicas": self._replicas,
            "allow_rollup_hdrs": True,
            "allow_direct": True,
            "deny_delete": True,
        }
        try:
            await question(self._client, f"STREAM.CREATE.{self._stream}", config, timeout=self._timeout)
        except Refused as exc:
            if exc.err_code != api.STREAM_EXISTS:
                raise LogMisconfigured(f"bucket {self._stream} cannot be made: {exc.description}") from exc
            try:
                await replicate(self._client, self._stream, self._replicas, timeout=self._timeout)
                found = await question(self._client, f"STREAM.INFO.{self._stream}", timeout=self._timeout)
                config["num_replicas"] = found["config"]["num_replicas"]
                await question(self._client, f"STREAM.UPDATE.{self._stream}", config, timeout=self._timeout)
            except Refused as again:
                raise LogMisconfigured(f"bucket {self._stream} cannot be mended: {again.description}") from again
