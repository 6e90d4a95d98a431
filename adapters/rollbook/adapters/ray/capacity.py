"""Why Ray may not have found room for a cell's processes: what was asked for, and what the cluster has. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rollbook.adapters.ray.checking import bundle_of
from rollbook.adapters.ray.spec import Spec

Amounts = Mapping[str, float]
"""By kind of resource, as Ray names them: CPU, GPU, memory (bytes), and whatever a node was given."""

_GIB: Final = 1 << 30


def needed(spec: Spec) -> str:
    """What the process of one worker asks for: `CPU 1 and GPU 8`; empty for nothing."""
    return _told(bundle_of(spec))


def shortage(specs: Sequence[Spec], nodes: Sequence[Amounts], free: Amounts) -> str:
    """What these workers of a cell ask for, and why that has no place; empty if they ask for nothing.

    `nodes` is what each living node has, `free` what of all that nobody uses now.
    """
    bundles = [bundle for spec in specs if (bundle := bundle_of(spec))]
    if not bundles:
        return ""
    strategy = specs[0].placement
    whole = _sum(bundles)
    asked = " + ".join(
        told if count == 1 else f"{count} x ({told})" for told, count in Counter(map(_told, bundles)).items()
    )
    return f"Ray was asked for {asked}{f' ({strategy})' if strategy else ''}; " + (
        _too_large([whole] if strategy == "STRICT_PACK" else bundles, nodes)
        or _too_few(len(bundles) if strategy == "STRICT_SPREAD" else 1, nodes)
        or _too_much(whole, nodes)
        or f"the cluster has that; free now: {_told(free, whole)}"
    )


def _too_large(bundles: Iterable[Amounts], nodes: Sequence[Amounts]) -> str:
    """What has to be on one node, and no node has it."""
    for bundle in bundles:
        if nodes and not any(_has(node, bundle) for node in nodes):
            closest = min(nodes, key=lambda node: sum(_lacking(node, bundle).values()))
            return f"no node has {_told(bundle)}: the closest of {len(nodes)} has {_told(closest, bundle)}"
    return ""


def _too_few(count: int, nodes: Sequence[Amounts]) -> str:
    return f"that needs {count} nodes at least, and there are {len(nodes)}" if len(nodes) < count else ""


def _too_much(whole: Amounts, nodes: Sequence[Amounts]) -> str:
    total = _sum(nodes)
    return "" if _has(total, whole) else f"all {len(nodes)} nodes together have {_told(total, whole)}"


def _has(node: Amounts, asked: Amounts) -> bool:
    return not _lacking(node, asked)


def _lacking(node: Amounts, asked: Amounts) -> dict[str, float]:
    """By kind, which part of what is asked for it does not have."""
    return {kind: 1 - node.get(kind, 0) / amount for kind, amount in asked.items() if node.get(kind, 0) < amount}


def _sum(several: Iterable[Amounts]) -> dict[str, float]:
    total: dict[str, float] = {}
    for one in several:
        for kind, amount in one.items():
            total[kind] = total.get(kind, 0) + amount
    return total


def _told(amounts: Amounts, kinds: Iterable[str] | None = None) -> str:
    """`CPU 4 and memory 16 GiB`, of all kinds or of these."""
    found = ((kind, amounts.get(kind, 0)) for kind in (amounts if kinds is None else kinds))
    return " and ".join(
        f"{kind} {amount / _GIB:.3g} GiB" if kind == "memory" else f"{kind} {amount:g}" for kind, amount in found
    )
