"""How the workers of one pool are watched."""

from __future__ import annotations

from typing import Literal

import msgspec


class HealthPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How `rollbook monitor` watches the workers of one pool. Times are in seconds, thresholds in failed probes."""

    probe: Literal["http", "ray", "off"] = "http"
    """`http` asks `path` of each worker, `ray` calls `method` of its actor, `off` leaves the pool alone."""
    url: str | None = None
    """Where the worker is asked: a template as the pool's `url`. By default that one."""
    path: str = "/health"
    """GET on the worker that must answer 200."""
    actor: str = "{worker}"
    """Name of the worker's actor, with `{worker}` in it; in the namespace of the provider."""
    method: str = "health"
    """Its method. It is well if that returns None or True; a string is taken for what is wrong."""
    deep: Literal["none", "sglang", "openai"] = "none"
    """Whether one token is generated now and then: by POST `/generate` as SGLang has it, or `/v1/completions` as vLLM
    and LMDeploy do. It finds an engine that hangs behind a health page that answers."""
    deep_every: int = 10
    """Of so many probes of a worker one is deep."""
    deep_timeout: float = 30.0
    """For one deep probe: it waits its turn behind the requests that the worker has already."""
    interval: float = 5.0
    """Between the beginnings of two probes of one worker."""
    jitter: float = 0.1
    """The part of the interval, from 0 to 1, by which each is moved at random, so that probes do not come in waves."""
    timeout: float = 5.0
    """For one probe."""
    dead_threshold: int = 2
    """Refused connections after which it is down (`refused`). An actor that Ray calls dead is down at once."""
    slow_threshold: int = 3
    """Probes without an answer after which it is down (`timeout`). 0: never."""
    busy_threshold: int = 12
    """Answers of 503 or 429 after which it is down (`unhealthy`). 0: never."""
    unhealthy_threshold: int = 3
    """Other answers than 200 after which it is down (`unhealthy`). 0: never."""
    success_threshold: int = 2
    """Good answers in a row after which one that is down, suspected or starting is up."""
    first_wait: float = 300.0
    """After the beginning of a life, for compilation and loading of weights: until its first good answer, and so long
    at most, failures count for nothing. Only a refused connection does, of a worker that the log calls serving, where
    any other of the pool has answered this monitor."""
    parallel: int = 256
    """Probes under way at a time, for the whole pool."""
    every_rank: bool = False
    """Whether all ranks of a cell are asked, or only the one that takes requests."""
