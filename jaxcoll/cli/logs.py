"""Logs of measured times, as commands read them."""

from __future__ import annotations


def collective_of(log: str) -> str | None:
    """The collective that a log states; None if it states none, or several."""
    import jaxcoll as jc
    from jaxcoll.io.files import load_text

    try:
        rows = jc.io.timings.load(log).rows
    except jc.errors.FormatError:
        # Many logs do not state their collective. Other kinds of text are refused.
        if load_text(log, jc.io.kind_of) not in ("log", "timings"):
            raise
        return None
    kinds = {row.collective for row in rows}
    return kinds.pop() if len(kinds) == 1 else None
