"""Reasons in the words of somebody else's code, made into what a fact can hold: the codec refuses the rest."""

from __future__ import annotations


def tellable(reason: str, longest: int) -> str:
    """At most `longest` letters of it. What no UTF-8 can say (lone surrogates, as of a name of a file) is escaped."""
    return reason[:longest].encode(errors="backslashreplace").decode()[:longest]
