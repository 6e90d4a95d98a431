"""The key-value store of Ray's head, where managers keep what must outlive them.

It lives as long as the cluster that runs the workers; so there is no file whose node could be gone, and nothing to
clean up when the cluster is.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

_NAMESPACE: Final = b"rollbook"
_CALLS: Final = ("list", "get", "put", "del")


class Store(Protocol):
    """Keys and values. Every call blocks for a round trip."""

    def keys(self, prefix: bytes) -> list[bytes]:
        """Those that begin so."""
        ...

    def get(self, key: bytes) -> bytes | None:
        """Its value; None if there is no such key."""
        ...

    def put(self, key: bytes, value: bytes, *, overwrite: bool) -> bool:
        """Write it. Without `overwrite` only if there is no such key: of several that try, one does.

        Whether there was none for sure; not, where Ray had to ask its head twice.
        """
        ...

    def delete(self, key: bytes) -> None:
        """Remove it, if it is there."""
        ...


class RayStore:
    """The `Store` of the cluster that this process has joined. Raises Ray's errors."""

    def __init__(self) -> None:
        # Ray's own way to its head's store has no public name; Ray's libraries (Serve, Train) use this one.
        from ray.experimental import internal_kv

        self._calls: dict[str, Any] = {name: vars(internal_kv)[f"_internal_kv_{name}"] for name in _CALLS}

    def keys(self, prefix: bytes) -> list[bytes]:
        """See `Store`."""
        return list(self._calls["list"](prefix, namespace=_NAMESPACE))

    def get(self, key: bytes) -> bytes | None:
        """See `Store`."""
        value: bytes | None = self._calls["get"](key, namespace=_NAMESPACE)
        return value

    def put(self, key: bytes, value: bytes, *, overwrite: bool) -> bool:
        """See `Store`."""
        return not self._calls["put"](key, value, overwrite=overwrite, namespace=_NAMESPACE)

    def delete(self, key: bytes) -> None:
        """See `Store`."""
        self._calls["del"](key, namespace=_NAMESPACE)
