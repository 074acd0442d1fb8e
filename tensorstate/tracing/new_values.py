"""The results of a step that are new values of its arguments.

New parameters have the structure, shapes and dtypes of the old ones, but other results may have
them by chance, such as a product of square matrices or a reconstruction of the batch. A new value
is computed from the old one element by element, as in ``p - 0.1 * g`` and ``0.9 * m + 0.1 * g``, or
overwrites some of its elements. A tree of several leaves is also recognised by its structure; an
array is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax

from tensorstate.ir.trees import first_difference, path_name
from tensorstate.rules import elementwise
from tensorstate.tracing.flat import FlatJaxpr

# Primitives that return the elements of their first operand, or overwrite some of them.
_WRITES = frozenset(
    ["carry_in", "carry_out", "fill", "dynamic_update_slice", "scatter", "scatter-add"]
)


def shape_text(shape: jax.ShapeDtypeStruct) -> str:
    """Dtype and shape, such as ``float32[4, 6]``."""
    return f"{shape.dtype}{list(shape.shape)}"


def leaf_difference(a: Any, b: Any) -> str | None:
    """The first difference of two trees in structure, shape or dtype, as text; ``None`` if none."""
    if (difference := first_difference(a, b)) is not None:
        return f"it {difference}"
    for (path, x), y in zip(jax.tree.leaves_with_path(a), jax.tree.leaves(b), strict=True):
        if x.shape != y.shape or x.dtype != y.dtype:
            return f"{shape_text(x)} is not {shape_text(y)} at {path_name(path) or 'the top'}"
    return None


class _Part(NamedTuple):
    """An argument, or a part of the result, as a tree and the number of its first leaf."""

    tree: Any
    start: int

    @property
    def leaves(self) -> range:
        return range(self.start, self.start + len(jax.tree.leaves(self.tree)))


def new_values(program: FlatJaxpr, args: Sequence[Any], results: Sequence[Any]) -> dict[int, int]:
    """Maps leaves of the results to the leaves of the arguments whose new values they are.

    Args:
        args, results: trees of ``jax.ShapeDtypeStruct``, whose leaves are the inputs and outputs
            of the program.
    """
    made, pairs = _made_of(program), dict[int, int]()
    computed, by_structure = list[list[_Part]](), list[list[_Part]]()
    given = [*_parts(args)]
    for arg in given:
        # The results of the step come first, then their parts, as in a dictionary of results.
        whole, count = [*_parts(results)], len(arg.leaves)
        parts = [*whole, *(inner for part in whole for inner in _inner(part, count))]
        same = [p for p in parts if count and leaf_difference(p.tree, arg.tree) is None]
        bits = [
            any(made[k] >> i & 1 for i, k in zip(arg.leaves, part.leaves, strict=True))
            for part in same
        ]
        computed.append([part for part, is_made in zip(same, bits, strict=True) if is_made])
        by_structure.append([p for p in same if p in whole and not _is_array(p.tree)])
    # Parameters and momenta are equal trees; new parameters are computed from both, and new momenta
    # only from momenta. So the result with fewer candidates is matched first.
    for number in sorted(range(len(given)), key=lambda n: len(computed[n]) or math.inf):
        choices = [*computed[number], *by_structure[number]]
        free = (part for part in choices if pairs.keys().isdisjoint(part.leaves))
        if (found := next(free, None)) is not None:
            pairs |= dict(zip(found.leaves, given[number].leaves, strict=True))
    return pairs


def _is_array(tree: Any) -> bool:
    return jax.tree.structure(tree) == jax.tree.structure(0)


def _parts(trees: Sequence[Any], start: int = 0) -> Iterator[_Part]:
    for tree in trees:
        yield _Part(tree, start)
        start += len(jax.tree.leaves(tree))


def _inner(part: _Part, count: int) -> Iterator[_Part]:
    """The trees with the given number of leaves inside a tree, without the tree itself."""
    leaves, structure = jax.tree.flatten(part.tree)
    start = 0
    for child in structure.children():
        tree = jax.tree.unflatten(child, leaves[start : start + child.num_leaves])
        inner = _Part(tree, part.start + start)
        start += child.num_leaves
        if child.num_leaves == count:
            yield inner
        if child.num_leaves >= count:
            yield from _inner(inner, count)


def _made_of(program: FlatJaxpr) -> list[int]:
    """For every output, a bit for each input from which it is computed element by element."""
    made = {id(variable): 1 << i for i, variable in enumerate(program.inputs)}
    for eqn in program.eqns:
        name = eqn.primitive.name
        if name in _WRITES:
            operands = eqn.inputs[:1]
        elif name in elementwise.RULES or name == "convert_element_type":
            operands = eqn.inputs
        else:
            continue
        for out in eqn.outputs:
            bits = 0
            for x in operands:
                bits |= made.get(id(x), 0) if x.shape == out.shape else 0
            made[id(out)] = bits
    return [made.get(id(atom), 0) for atom in program.outputs]
