"""Who answered a request, held against what the log said when it was sent. The same words for figures and checks."""

from __future__ import annotations

from rollbook.adapters.demo.history import History, Life
from rollbook.adapters.demo.records import Request
from rollbook.events import Deregistered


def life_of(request: Request) -> Life | None:
    """The life that answered, by its own word."""
    if request.worker is None or request.incarnation is None:
        return None
    return request.worker, request.incarnation


def wrong(request: Request, history: History) -> str | None:
    """Why whoever served the request should not have, by the log as it was when the request was sent; None if it may.

    A life that the log heard of only later is not wrong: it cannot be numbered without the log. Nor is one of which it
    was only concluded that it is over (`timeout`): it may stand still and go on, and is listed until it is removed.
    """
    life = life_of(request)
    if life is None:
        return "whoever answered did not say who it is"
    if not history.heard_of(life):
        return "the log never knew this life"
    known = history.known(life[0], request.sent)
    if known is None or known.incarnation < life[1]:
        return None
    if known.incarnation > life[1]:
        return f"incarnation {known.incarnation} was the current one"
    return None if known.live or not known.certain else "the log knew that this life was over"


def late(request: Request, history: History) -> bool:
    """Whether a life served that was only concluded to be over: it stood still, and was still listed."""
    life = life_of(request)
    known = None if life is None else history.known(life[0], request.sent)
    if life is None or known is None or known.incarnation != life[1] or known.live or known.certain:
        return False
    return not unregistered(request, history)


def unregistered(request: Request, history: History) -> bool:
    """Whether the life that served had been seen to be gone from the router, and was not put back before it served."""
    life = life_of(request)
    words = [] if life is None else [word for word in history.words_about(life) if word.at <= request.done]
    return bool(words) and isinstance(words[-1].fact, Deregistered) and words[-1].at <= request.sent


def early(request: Request, history: History) -> bool:
    """Whether a new life served before it was registered: its URL was still listed for the life before it."""
    life = life_of(request)
    if life is None or wrong(request, history) is not None:
        return False
    return not any(word.at <= request.done for word in history.words_about(life))
