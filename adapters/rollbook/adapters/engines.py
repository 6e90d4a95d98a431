"""What every engine is asked in the same way: one generated token, and which models it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

GENERATE: Final = "/generate"
"""Where SGLang generates."""
ONE_TOKEN: Final[dict[str, Any]] = {"text": "1", "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
"""What is posted there for one token."""
MOST_BYTES: Final = 1 << 20
"""Of an answer; what is beyond is not read."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def first_model(session: ClientSession, url: str) -> str:
    """What `/v1/models` names first. Raises `ValueError` if that is none, and what aiohttp does."""
    async with session.get(f"{url}/v1/models", allow_redirects=False) as answer:
        body = await read_answer(answer)
    try:
        return msgspec.json.decode(body, type=_Models).data[0].id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IndexError) as exc:
        raise ValueError("/v1/models names no model") from exc


async def read_answer(answer: ClientResponse, most: int = MOST_BYTES) -> bytes:
    """All of an answer, up to a bound: `read` of its stream alone returns the first piece that came."""
    pieces = bytearray()
    while len(pieces) < most and (piece := await answer.content.read(most - len(pieces))):
        pieces += piece
    return bytes(pieces)
