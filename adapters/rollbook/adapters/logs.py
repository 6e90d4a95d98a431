"""What the programs say about themselves, on standard error: structlog, for people on a terminal, JSON elsewhere.

An event is a dotted constant name with keys (`"proxy.registration_failed", proxy=..., worker=...`). Secrets are taken
out here, after the caller and before any renderer, also from lines of the libraries underneath.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping
from typing import Any, Final, Literal, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

REDACTED: Final = "[redacted]"
_SECRET_WORDS: Final = frozenset(
    {"apikey", "auth", "authorization", "cookie", "creds", "credentials", "jwt", "nkey", "passwd", "password", "secret"}
)
_SECRET_ENDS: Final = ("token", "api_key", "access_key", "private_key")
_USERINFO: Final = re.compile(r"(?<=://)[^\s/@]+@")
_QUERY: Final = re.compile(r"([?&](?:api_key|apikey|token|password|secret|key)=)[^&\s]+", re.IGNORECASE)
_SCHEME: Final = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)


def configure(
    *,
    environ: Mapping[str, str],
    format: Literal["auto", "console", "json"] = "auto",  # noqa: A002 - the setting's name
    level: str = "info",
    stream: TextIO | None = None,
) -> None:
    """Set up structlog and the standard library's logging for this process, once, at its start.

    `stream` is standard error unless a test says otherwise. Colours need a terminal and no NO_COLOR in `environ`.
    """
    out = stream if stream is not None else sys.stderr
    terminal = out.isatty()
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    colors = terminal and not environ.get("NO_COLOR")
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(
            colors=colors, timestamp_key="time", exception_formatter=structlog.dev.plain_traceback
        )
        if format == "console" or (format == "auto" and terminal)
        else structlog.processors.JSONRenderer()
    )
    # The traceback becomes text before secrets are taken out, and so never shows the locals of its frames.
    last: list[Processor] = [structlog.processors.format_exc_info, redact_event, renderer]
    structlog.configure(
        processors=[*shared, structlog.processors.StackInfoRenderer(), *last],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _library_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    # Libraries are quiet below a warning: their events are not ours, and some of them log every request.
    root.setLevel(max(number, logging.WARNING))


def _library_name(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    record = event.get("_record")
    if record is not None:
        event["library"] = record.name
    return event


def redact_event(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """The event with secrets replaced: values under secret-looking keys, and credentials inside any string."""
    return {key: redact(value, key) for key, value in event.items()}


def redact(value: Any, key: str = "") -> Any:
    """`value` with secrets replaced. Strings, mappings and sequences are looked into; anything else is kept."""
    if key and value is not None and not isinstance(value, bool) and is_secret(key):
        return REDACTED
    match value:
        case str():
            return redact_text(value)
        case Mapping():
            return {inner: redact(item, str(inner)) for inner, item in value.items()}
        case list() | tuple():
            return [redact(item) for item in value]
        case _:
            return value


def redact_text(text: str) -> str:
    """`text` without the credentials of URLs, queries and HTTP authorisation."""
    text = _USERINFO.sub(f"{REDACTED}@", text)
    text = _QUERY.sub(rf"\1{REDACTED}", text)
    return _SCHEME.sub(rf"\1 {REDACTED}", text)


def is_secret(key: str) -> bool:
    """Whether a key's value is a secret by its name. Counts such as `max_tokens` are not."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).replace("-", "_").lower()
    return snake.endswith(_SECRET_ENDS) or not _SECRET_WORDS.isdisjoint(snake.split("_"))
