"""Whose life a framework's call is about: it says "this worker", and a fact needs the number of its life."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable
from typing import Unpack

from rollbook.adapters.listeners.follow import Follow
from rollbook.adapters.publisher import Life, Publisher
from rollbook.adapters.publisher.life import Identity
from rollbook.events import Evidence
from rollbook.events.facts.base import MAX_INTEGER


class Lives:
    """Begins and ends the lives of workers that somebody else starts. Every method returns at once, on any thread."""

    def __init__(self, publisher: Publisher, follow: Follow) -> None:
        self._publisher = publisher
        self._follow = follow
        self._lock = threading.Lock()
        """Held while facts are handed to the publisher, which never waits."""
        self._lives: dict[str, Life] = {}
        """By worker: the life that was begun here last."""
        self._ended: dict[str, int | Life] = {}
        """By worker: the life that was said to be over last; itself, while it has no number."""
        self._cells: dict[tuple[str, ...], int] = {}
        forked = weakref.WeakMethod(self._forked)
        os.register_at_fork(after_in_child=lambda: (method := forked()) and method())

    def begin(self, name: str, **identity: Unpack[Identity]) -> None:
        """A new process of `name` serves. The log numbers its life."""
        with self._lock:
            self._begin(name, identity)

    def recover(self, name: str, **identity: Unpack[Identity]) -> None:
        """`name` serves again: a new life, or the one that somebody else has begun since it was said to be over."""
        with self._lock:
            known, ended = self._follow.look(name), _number(self._ended.get(name))
            if known.alive and ended is not None and known.incarnation > max(ended, self._own(name)):
                self._publisher.worker_up(name, incarnation=known.incarnation, **identity)
            else:
                self._begin(name, identity)

    def end(self, name: str, *, evidence: Evidence, reason: str, **identity: Unpack[Identity]) -> None:
        """The life of `name` that is the present one at this moment is over, whenever this reaches the log."""
        with self._lock:
            life, known = self._lives.get(name), self._follow.look(name).incarnation
            # In this order: the log may number it between the two questions.
            if life is not None and (life.being_numbered or (life.incarnation or 0) >= max(known, 1)):
                life.down(evidence=evidence, reason=reason)
                self._ended[name] = life
                return
            if known:
                self._ended[name] = known
                self._publisher.worker_down(name, incarnation=known, evidence=evidence, reason=reason, **identity)
                return
            # Nothing is known of it here. The publisher asks the log as of now, and says so if it cannot.
            self._publisher.worker_down(name, evidence=evidence, reason=reason, **identity)

    def next_cell(self, names: Iterable[str]) -> int:
        """The number of a new start of the cell of these workers: above all that were seen."""
        cell = tuple(sorted(names))
        with self._lock:
            seen = max(self._follow.look(name).cell_incarnation for name in cell)
            number = self._cells[cell] = max(seen, self._cells.get(cell, 0)) + 1
            return number

    def present_cell(self, names: Iterable[str]) -> int:
        """The number of the last start of that cell; 1 if none was seen."""
        cell = tuple(sorted(names))
        with self._lock:
            seen = max(self._follow.look(name).cell_incarnation for name in cell)
            return max(seen, self._cells.get(cell, 0), 1)

    def _forked(self) -> None:
        """In a forked child nobody may be there to release it; the publisher says there what to do instead."""
        self._lock = threading.Lock()

    def _own(self, name: str) -> int:
        """The number of the life that was begun here last; above all others while the log has not given it."""
        life = self._lives.get(name)
        return 0 if life is None else life.incarnation or MAX_INTEGER

    def _begin(self, name: str, identity: Identity) -> None:
        life = self._publisher.worker(name, **identity)
        life.up()
        self._lives[name] = life


def _number(life: int | Life | None) -> int | None:
    return life.incarnation if isinstance(life, Life) else life
