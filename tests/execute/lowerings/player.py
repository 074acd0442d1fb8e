"""The player of the lowering ``links``, compiled where it is not yet."""

from __future__ import annotations

import functools

from jaxcoll.execute.links import build, engine


@functools.cache
def is_compiled() -> bool:
    """Whether the player is here; without a C++ compiler it is not."""
    found = engine.compiled()
    if isinstance(found, str) or found.stat().st_mtime < build.SOURCE.stat().st_mtime:
        try:
            build.build(build.SOURCE.parent)
        except RuntimeError:
            return False
    return not isinstance(engine.library(), str)
