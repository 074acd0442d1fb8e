"""The result of a case of ``tests.execute.differential.comparison`` on every rank, in NumPy.

Nothing of JAX runs here, so programs that ``jax.lax`` refuses or cannot compile have values to be
compared with as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

# Transformations whose first result is the function's own.
KEEPS_VALUE = ("none", "jit", "vjp", "remat", "jvp", "linearize")


def values(case, operands: np.ndarray) -> np.ndarray | None:
    """The first result of a case on every rank.

    Args:
        operands: the operand of each rank, shape (ranks, ...), the ranks along the manual axes in
            the order of the mesh, the last axis fastest.

    Returns:
        Shape (ranks, ...), in 64 bits; ``None`` where the first result is not a value of the
        function over the mesh.
    """
    how = case.transform
    if how in KEEPS_VALUE:
        return _ranks(case, operands)
    if not how.startswith("vmap") or how == "vmap own axis":
        return None
    twice = operands if operands.dtype == bool else operands + operands
    pair = [_ranks(case, operands), _ranks(case, twice)]
    if how == "vmap both":
        return np.stack([np.stack([v, v], 1) for v in pair], 1)
    return np.stack(pair, -1 if how == "vmap vjp" else 1)


def _ranks(case, operands: np.ndarray) -> np.ndarray:
    """The function on every rank, without a transformation."""
    sides = [case.size(name) for name in case.manual]
    names = (case.axis_name,) if isinstance(case.axis_name, str) else case.axis_name
    options = dict(case.options)
    groups = options.pop("axis_index_groups", None)
    out = []
    for here in np.ndindex(*sides):
        members = _along(case.manual, sides, here, names)
        index = members.index(int(np.ravel_multi_index(here, sides)))
        group = range(len(members)) if groups is None else next(g for g in groups if index in g)
        part = operands[[members[i] for i in group]]
        out.append(_call(case.function, part, list(group).index(index), options))
    return np.stack(out)


def _along(
    manual: Sequence[str], sides: Sequence[int], here: Sequence[int], names: Sequence[str]
) -> list[int]:
    """The ranks that differ from one along some axes only, the last name fastest."""
    sizes = [sides[manual.index(name)] for name in names]
    ranks = []
    for there in np.ndindex(*sizes):
        at = list(here)
        for name, place in zip(names, there, strict=True):
            at[manual.index(name)] = place
        ranks.append(int(np.ravel_multi_index(at, sides)))
    return ranks


def _call(function: str, part: np.ndarray, place: int, options: dict) -> np.ndarray:
    """The result of the member at an index of a group, from the members' operands."""
    size = len(part)
    if function in ("pmax", "pmin"):
        return part.max(0) if function == "pmax" else part.min(0)
    if function == "pbroadcast":
        return part[options["source"]]
    if function == "all_gather":
        join = np.concatenate if options["tiled"] else np.stack
        return join(list(part), options["axis"])
    if function == "all_to_all":
        pieces = [_piece(v, options["split_axis"], size, place, options["tiled"]) for v in part]
        return (np.concatenate if options["tiled"] else np.stack)(pieces, options["concat_axis"])
    total = part.astype(np.int64).sum(0) if part.dtype == bool else part.sum(0)
    if function == "psum":
        return total
    if function == "pmean":
        return total / size
    if function == "psum_scatter":
        return _piece(total, options["scatter_dimension"], size, place, options["tiled"])
    raise ValueError(f"no oracle for {function}")


def _piece(v: np.ndarray, dimension: int, size: int, place: int, tiled: bool) -> np.ndarray:
    return np.split(v, size, dimension)[place] if tiled else np.take(v, place, dimension)


def operands(case, whole: np.ndarray) -> np.ndarray:
    """The operand of each rank in 64 bits, of an operand whose ranks are those along ``varies``."""
    sides = [case.size(name) for name in case.manual]
    varied = [case.manual.index(name) for name in case.varies]
    kind = "f" if whole.dtype.kind == "V" else whole.dtype.kind
    wide = {"f": np.float64, "c": np.complex128, "b": bool}.get(kind, np.int64)
    number = {"i": 3, "u": 3, "c": 2j, "b": True}.get(whole.dtype.kind)
    out = []
    for here in np.ndindex(*sides):
        at = np.ravel_multi_index([here[i] for i in varied], [sides[i] for i in varied])
        mine = whole[int(at) if varied else 0].astype(wide)
        if case.operand == "weak":
            mine = np.full_like(mine, 2.0 if number is None else number)
        if case.operand == "python":
            mine = np.full_like(mine, 2.5 if number is None else number)
        if case.operand == "numpy":
            mine = np.ones_like(mine)
        out.append(mine)
    return np.reshape(np.stack(out), (math.prod(sides), *whole.shape[1:]))
