"""The inputs of a plan as text: the names of the arrays by sharding.

A model of any depth has few shardings, so this is short. Parameters are listed by sharding, and
moments of an optimizer only if their sharding differs from that of their parameter. Names that
differ in one part become one name: ``layers_*/{gate,up}/kernel``.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from tensorstate.cost.cost import SearchResult
from tensorstate.ir.graph import Tensor
from tensorstate.ir.padded import longer_sizes
from tensorstate.ir.placements import Placements
from tensorstate.problem.problem import Problem
from tensorstate.report.units import size

ROLES = ("parameter", "optimizer", "input", "constant")
# The columns of a line; and the number of shardings listed for a role, the largest first.
WIDTH, MOST_SPECS = 100, 8


def padding_lines(problem: Problem) -> list[str]:
    """The dimensions of arguments that the plan pads; if none, those that no axis divides."""
    graph, axes = problem.traced, problem.mesh.sizes
    if graph.padding is not None:
        by_size: dict[tuple[int, int], list[str]] = defaultdict(list)
        for array in graph.padding.inputs.values():
            pairs = zip(itertools.chain(*array.sizes), itertools.chain(*array.padded), strict=True)
            for size, longer in dict.fromkeys(pairs):
                if size < longer:
                    by_size[size, longer].append(array.name)
        parts = [
            f"{n} to {m} ({100 * (m - n) / n:.2g} % more) in {_listed(names)}"
            for (n, m), names in sorted(by_size.items())
        ]
        return [f"padded: {'; '.join(parts)}: give arguments by plan.apply().put(arguments)"]
    whole = [n for n in longer_sizes(graph.argument_sizes, axes) if all(n % a for a in axes)]
    if not whole:
        return []
    sizes = ", ".join(map(str, whole[-3:]))
    return [f"no axis divides dimensions of {sizes}: search(..., padding=True) may pad them"]


def _listed(names: Sequence[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if names[most:] else "")


def spec_parts(problem: Problem, tensor: Tensor, placements: Placements) -> list[str]:
    """The entry of a ``PartitionSpec`` for every dimension of the array, as text."""
    axes = problem.mesh.names
    dims = tensor.array_dims or tuple((p,) for p in range(len(tensor.sizes)))
    cut = [tuple(axes[a] for a, p in enumerate(placements) if p in positions) for positions in dims]
    return ["None" if not c else repr(c[0]) if len(c) == 1 else repr(c) for c in cut]


def spec_text(problem: Problem, tensor: Tensor, placements: Placements) -> str:
    """Placements as a ``PartitionSpec`` of the array, without trailing Nones."""
    parts = spec_parts(problem, tensor, placements)
    while parts and parts[-1] == "None":
        parts.pop()
    return f"P({', '.join(parts)})" if parts else "replicated"


def input_lines(problem: Problem, result: SearchResult) -> list[str]:
    """A line for every role, and one or more for each of its shardings."""
    graph, strategies = problem.graph, result.decisions.strategies
    specs: dict[int, str] = {}
    local: Counter[str] = Counter()
    for group in problem.tensor_groups:
        if group.is_input:
            tensor = graph.tensors[group.tensors[0]]
            placements = problem.produced_placements(group, strategies[group.class_id])
            specs |= dict.fromkeys(group.tensors, spec_text(problem, tensor, placements))
            local[tensor.role] += group.multiplicity * problem.input_bytes(group, placements)
    # Moments are matched by the ends of their paths: ``params/up`` ends in "up" as Optax's
    # ``state/0/mu/up`` does. In a Flax state ``state/params/Dense_0/kernel`` has the same end as
    # ``state/opt_state/0/mu/Dense_0/kernel``.
    of_parameter: dict[object, set[str]] = defaultdict(set)
    for tensor in (graph.tensors[t] for t in specs):
        if tensor.role == "parameter":
            for end in _ends(tensor):
                of_parameter[end, tensor.sizes].add(specs[tensor.index])
                of_parameter[end, None].add(specs[tensor.index])
    lines = []
    for role in ROLES:
        tensors = [problem.traced.tensors[t] for t in specs if graph.tensors[t].role == role]
        if not tensors:
            continue
        shown = [t for t in tensors if t.sizes]
        if role == "optimizer":
            shown = [t for t in shown if specs[t.index] != _parameters_spec(t, of_parameter)]
        suffix = ", sharded as the parameters" if role == "optimizer" and of_parameter else ""
        suffix += ", but for" if suffix and shown else ""
        total = size(sum(t.nbytes for t in tensors))
        lines.append(f"{role}: {total}, {size(local[role])} per device{suffix}")
        lines += _spec_lines(shown, specs, [tensor.name for tensor in tensors])
    return lines


def _parameters_spec(tensor: Tensor, of_parameter: Mapping[object, set[str]]) -> str | None:
    """The sharding of parameters of equal sizes whose paths share the longest end with a name.

    State of other sizes, such as the factors of Adafactor, has that of its parameters if they are
    replicated.
    """
    for sizes in (tensor.sizes, None):
        found = (of_parameter.get((end, sizes)) for end in _ends(tensor))
        specs = next((specs for specs in found if specs), set())
        if specs and (sizes is not None or specs == {"replicated"}):
            return next(iter(specs)) if len(specs) == 1 else None
    return None


def _ends(tensor: Tensor) -> list[tuple[str, ...]]:
    """The ends of a path without the argument's name, the longest first and an empty one last."""
    parts = tensor.name.split("/")[1:]
    return [tuple(parts[k:]) for k in range(len(parts) + 1)]


def _spec_lines(
    tensors: Sequence[Tensor], specs: dict[int, str], among: Collection[str]
) -> Iterator[str]:
    """The names by sharding, shardings with the most bytes first."""
    by_spec: dict[str, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        by_spec[specs[tensor.index]].append(tensor)
    order = sorted(by_spec, key=lambda spec: -sum(t.nbytes for t in by_spec[spec]))
    for spec in order[:MOST_SPECS]:
        names = ", ".join(merged_names([t.name for t in by_spec[spec]], among))
        head = f"  {spec:26} "
        yield from textwrap.wrap(
            head + names, WIDTH, subsequent_indent=" " * 29, break_long_words=False, max_lines=4
        )
    if len(order) > MOST_SPECS:
        rest = sum(len(by_spec[spec]) for spec in order[MOST_SPECS:])
        yield f"  and {rest} tensors in {len(order) - MOST_SPECS} other shardings"


def merged_names(names: Sequence[str], among: Iterable[str]) -> list[str]:
    """Fewer names for the same tensors: those that differ in one part become one.

    Args:
        names: names of the tensors.
        among: names of all tensors; a star stands only for tensors in ``names``.
    """
    # Part by part, from the first: layers/0/up, layers/0/down, layers/1/up and layers/1/down become
    # layers/{0,1}/up and layers/{0,1}/down, and then layers/{0,1}/{up,down}.
    merged = [tuple((part,) for part in name.split("/")) for name in dict.fromkeys(names)]
    for position in range(max((len(parts) for parts in merged), default=0)):
        by_rest: dict[object, list[tuple[tuple[str, ...], ...]]] = defaultdict(list)
        for parts in merged:
            rest = (*parts[:position], len(parts), *parts[position + 1 :])
            by_rest[rest].append(parts)
        merged = [
            (
                *group[0][:position],
                tuple(itertools.chain.from_iterable(parts[position] for parts in group)),
                *group[0][position + 1 :],
            )
            if len(group[0]) > position
            else group[0]
            for group in by_rest.values()
        ]
    others = set(among) - set(names)
    return [_joined(parts, others) for parts in merged]


def _joined(parts: Sequence[Sequence[str]], others: Collection[str]) -> str:
    """A name with choices in some parts; all numbers are a star unless that says too much."""
    # A star for ("0", "1") also stands for "2". If that is another tensor with another sharding,
    # the numbers are listed instead.
    stars = [_star(choices) for choices in parts]
    pattern = "/".join(
        "[^/]*".join(map(re.escape, star.split("*")))
        if star.endswith("*")
        else f"(?:{'|'.join(map(re.escape, choices))})"
        for star, choices in zip(stars, parts, strict=True)
    )
    if any(re.fullmatch(pattern, other) for other in others):
        stars = [_braces(choices) for choices in parts]
    return "/".join(stars)


def _star(choices: Sequence[str]) -> str:
    numbered = [re.fullmatch(r"(.*?)\d+", choice) for choice in choices]
    stems = {None if match is None else match[1] for match in numbered}
    is_one = len(choices) > 1 and len(stems) == 1 and None not in stems
    return f"{stems.pop()}*" if is_one else _braces(choices)


def _braces(choices: Sequence[str]) -> str:
    return choices[0] if len(choices) == 1 else "{" + ",".join(choices) + "}"
