"""The layers of a plan, by the names of the model: the cost of each, and how it is sharded.

A layer is what the model calls one. For an operator it is the name stack, which Flax fills with
modules; for a parameter it is its path without the last part. If a model names no modules,
operators belong to the parameter that they read, and others to the layer of their operands. Layers
whose names differ only in numbers and whose shardings are the same are one row.

The seconds and bytes of all rows add up to those of the plan.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tensorstate.cost.cost import SearchResult
from tensorstate.ir.graph import Operator, Tensor
from tensorstate.ir.placements import REPLICATED, Placements
from tensorstate.problem.problem import Problem
from tensorstate.problem.tensor_groups import TensorGroup
from tensorstate.report.inputs import spec_text

Path = tuple[str, ...]
"""The parts of a layer's name."""

INPUTS: Path = ("inputs of the step",)
OTHERS: Path = ("the rest of the step",)

# Parts that JAX adds between modules.
_OF_JAX = frozenset({"checkpoint", "rematted_computation", "while", "body", "closed_call"})


class Picture(NamedTuple):
    """An array and how it lies on the devices.

    Attributes:
        name: the name of the tensor, or the operator that makes it and its line.
        short: the text below the picture.
        shape: the shape of the full array.
        cuts: for every dimension the mesh axes that shard it, major first.
        partial: the mesh axes along which every device has a term of it.
        spec: its sharding as a ``PartitionSpec``.
        nbytes: bytes per device.
        class_id: number of the node class that produces it.
    """

    name: str
    short: str
    shape: tuple[int, ...]
    cuts: tuple[tuple[int, ...], ...]
    partial: tuple[int, ...]
    spec: str
    nbytes: int
    class_id: int


@dataclasses.dataclass
class Layer:
    """A row: a layer, or several with the same shardings.

    Attributes:
        name: its name, with a star for numbers that differ.
        paths: the paths of all of its layers.
        parameters, activations: its arrays.
        compute, communication: seconds of a step in all of its layers together.
        nbytes: bytes of the parameters and the optimizer's state, per device.
        classes: the node classes that have operators in it, in the order of execution.
    """

    name: str
    paths: list[Path]
    parameters: list[Picture] = dataclasses.field(default_factory=list)
    activations: list[Picture] = dataclasses.field(default_factory=list)
    compute: float = 0.0
    communication: float = 0.0
    nbytes: float = 0.0
    classes: list[int] = dataclasses.field(default_factory=list)


class Layers:
    """The layers of a plan.

    Attributes:
        rows: in the order of execution.
        of_node, of_tensor: the name of the row, by number of a node or of a tensor.
    """

    def __init__(self, problem: Problem, result: SearchResult):
        self.problem, self.graph, self.result = problem, problem.graph, result
        inputs = [tensor for tensor in self.graph.tensors if tensor.producer is None]
        self.path_of_tensor = _paths_of_inputs(inputs)
        # An operator belongs to the layer of a parameter, or of a cast of one, before that of
        # another operand.
        self.of_state = {t.index for t in inputs if t.role in ("parameter", "optimizer")}
        self.beginnings = {
            path[:end] for path in self.path_of_tensor.values() for end in range(1, len(path) + 1)
        }
        self.path_of_node = self._paths_of_nodes()
        pictures = self._pictures_by_path()
        name_of = _names_of_rows(self.path_of_node, pictures)
        self.of_node = [name_of[path] for path in self.path_of_node]
        self.of_tensor = {t: name_of[path] for t, path in self.path_of_tensor.items()}
        self.rows = self._rows(name_of, pictures)
        self._add_costs()

    # ------------------------------------------------------------------ whose an operator is

    def _paths_of_nodes(self) -> list[Path]:
        """The path of a node's layer, by number of the node."""
        found = [OTHERS] * len(self.graph.nodes)
        # A chain reads what is produced before its last operator.
        last = {n.index: max((m.operator for m in n.members), default=-1) for n in self.graph.nodes}
        for node in sorted(self.graph.nodes, key=lambda node: last[node.index]):
            if node.tensor is not None:
                found[node.index] = self.path_of_tensor[node.tensor]
                continue
            operators = [self.graph.operators[member.operator] for member in node.members]
            path = self._path(operators)
            made = {use.tensor for operator in operators for use in operator.results}
            self.path_of_tensor |= dict.fromkeys(made, path)
            if {t.index for t in self._read(operators)} <= self.of_state:
                self.of_state |= made
            found[node.index] = path
        return found

    def _read(self, operators: Sequence[Operator]) -> list[Tensor]:
        """The tensors that a fused chain reads from outside it."""
        made = {use.tensor for operator in operators for use in operator.results}
        reads = dict.fromkeys(use.tensor for o in operators for use in o.operands)
        return [self.graph.tensors[number] for number in reads if number not in made]

    def _path(self, operators: Sequence[Operator]) -> Path:
        """The path of a fused chain's layer."""
        named = (_beginning(_path_of_stack(o.source.stack), self.beginnings) for o in operators)
        if path := next(filter(None, named), None):
            return path
        # Without a name, the operands decide: a parameter or a cast of one comes first. In the
        # backward pass a residual comes next, except for products of two activations, which belong
        # to the gradient's layer. Otherwise the operand that was computed last decides.
        reads = [
            tensor
            for tensor in self._read(operators)
            if self.path_of_tensor.get(tensor.index, OTHERS) not in (INPUTS, OTHERS)
        ]
        if not reads:
            return OTHERS

        def rank(tensor: Tensor) -> tuple[bool, bool, int]:
            is_product = operators[0].kind in ("einsum", "window")
            producer = -1 if tensor.producer is None else tensor.producer
            in_forward = producer >= 0 and self.graph.operators[producer].phase == "forward"
            is_residual = operators[0].phase == "backward" and in_forward and not is_product
            return tensor.index in self.of_state, is_residual, producer

        return self.path_of_tensor[max(reads, key=rank).index]

    # ------------------------------------------------------------------ pictures

    def _pictures_by_path(self) -> Mapping[Path, tuple[list[Picture], list[Picture]]]:
        """By path, its parameters, and its largest result of the forward pass."""
        found: dict[Path, tuple[list[Picture], list[Picture]]] = defaultdict(lambda: ([], []))
        largest: dict[Path, tuple[Any, Picture]] = {}
        for group in self.problem.tensor_groups:
            placements = self.problem.produced_placements(
                group, self.result.decisions.strategies[group.class_id]
            )
            for number in group.tensors:
                tensor, path = self.graph.tensors[number], self.path_of_tensor[number]
                picture = functools.partial(self._picture, group, tensor, placements)
                if not tensor.sizes:
                    continue
                if group.is_input:
                    if tensor.role in ("parameter", "input"):
                        found[path][0].append(picture())
                elif group.in_forward:
                    # A product is preferred to a result that is computed from it element by
                    # element.
                    kind = self.problem.node(group.class_id).kind
                    rank = kind in ("einsum", "window", "gather"), tensor.nbytes, -number
                    if path not in largest or rank > largest[path][0]:
                        largest[path] = rank, picture()
        for path, (_, picture) in largest.items():
            found[path][1].append(picture)
        for parameters, _ in found.values():
            parameters.sort(key=lambda picture: -math.prod(picture.shape))
        return found

    def _picture(self, group: TensorGroup, tensor: Tensor, placements: Placements) -> Picture:
        dims, shape, name = tensor.array_dims, None, tensor.name
        short = name.rpartition("/")[2]
        if dims is None and tensor.producer is not None:
            # As in the model: the dimensions of a result are those of its array.
            operator = self.graph.operators[tensor.producer]
            view = operator.eqn.outputs[tensor.result]
            dims = tuple(tuple(p for p in of if p is not None) for of in view.positions)
            shape, name = view.shape, f"{operator.primitive} at {operator.source.line}"
            short = f"result of {operator.primitive}"
        sizes = self.problem.whole.tensors[tensor.index].sizes
        dims = tuple((p,) for p in range(len(sizes))) if dims is None else dims
        axes = range(len(placements))
        if shape is None:
            shape = tuple(math.prod(sizes[p] for p in positions) for positions in dims)
        nbytes = self.problem.input_bytes if group.is_input else self.problem.local_bytes
        return Picture(
            name,
            short,
            shape,
            tuple(tuple(a for a in axes if placements[a] in positions) for positions in dims),
            tuple(a for a in axes if placements[a] < REPLICATED),
            spec_text(self.problem, tensor, placements),
            nbytes(group, placements),
            group.class_id,
        )

    # ------------------------------------------------------------------ rows

    def _rows(
        self,
        name_of: Mapping[Path, str],
        pictures: Mapping[Path, tuple[list[Picture], list[Picture]]],
    ) -> list[Layer]:
        rows: dict[str, Layer] = {}
        for node, path in zip(self.graph.nodes, self.path_of_node, strict=True):
            row = rows.setdefault(name_of[path], Layer(name_of[path], []))
            if path not in row.paths:
                row.paths.append(path)
                parameters, activations = pictures.get(path, ([], []))
                # One of each kind is shown: others in the row are like it.
                if len(row.paths) == 1:
                    row.parameters, row.activations = parameters, activations
            if node.class_id not in row.classes:
                row.classes.append(node.class_id)
        return self._in_order(rows)

    def _in_order(self, rows: Mapping[str, Layer]) -> list[Layer]:
        """Rows by their first operator, inputs of the step first."""
        first: dict[str, float] = {}
        for node, name in zip(self.graph.nodes, self.of_node, strict=True):
            at = min((m.operator for m in node.members), default=None)
            if at is not None:
                first.setdefault(name, at)
        last = float(len(self.graph.operators))
        return sorted(
            rows.values(),
            key=lambda r: (r.name != INPUTS[0], r.name == OTHERS[0], first.get(r.name, last)),
        )

    def _add_costs(self) -> None:
        """Add the seconds and bytes of every row; their ``math.fsum`` is that of the plan."""
        problem, cost, rows = self.problem, self.result.cost, {row.name: row for row in self.rows}
        strategies = self.result.decisions.strategies
        for node, name in zip(self.graph.nodes, self.of_node, strict=True):
            runs = 1 + (node.index in cost.kept.rerun)
            strategy = strategies[node.class_id]
            rows[name].compute += runs * problem.seconds(node.class_id, strategy)
            for send in problem.inner_sends(node.class_id, strategy):
                rows[name].communication += runs * problem.inner_send_seconds(send)
        for reshard in cost.reshards:
            group = problem.tensor_groups[reshard.group]
            for tensor in reshard.tensors:
                row = rows[self.of_tensor[tensor]]
                row.communication += reshard.seconds
                row.compute += reshard.keeping_seconds
                if group.is_input:
                    row.nbytes += problem.input_bytes(group, reshard.produced_placements)


# ---------------------------------------------------------------------- names


def _paths_of_inputs(inputs: Sequence[Tensor]) -> dict[int, Path]:
    """The path of an input's or constant's layer, by its number."""
    parameters = {t.index: tuple(t.name.split("/")) for t in inputs if t.role == "parameter"}
    # All parameters begin with "params/params", which says nothing.
    folders = [path[:-1] for path in parameters.values()]
    columns = itertools.takewhile(lambda parts: len({*parts}) == 1, zip(*folders, strict=False))
    shared = len([*columns])
    layer = {path[shared:]: path[shared:-1] or path[shared:] for path in parameters.values()}
    paths = {number: layer[path[shared:]] for number, path in parameters.items()}
    for tensor in inputs:
        if tensor.role == "input":
            paths[tensor.index] = INPUTS
        elif tensor.role != "parameter":
            # Moments have the path of their parameter after that of the optimizer.
            path = tuple(tensor.name.split("/"))
            ends = (layer.get(path[start:]) for start in range(len(path)))
            paths[tensor.index] = next(filter(None, ends), OTHERS)
    return paths


@functools.lru_cache(maxsize=4096)
def _path_of_stack(stack: str) -> Path:
    """The modules of a name stack: ``jvp(Model)/block_0/up`` is ``("block_0", "up")``."""
    found: list[str] = []
    for part in stack.split("/")[1:]:
        if part not in _OF_JAX and found[-1:] != [part]:
            found.append(part)
    return tuple(found)


def _beginning(path: Path, beginnings: Collection[Path]) -> Path:
    """The longest beginning that a path shares with a parameter's path; empty if there is none.

    A name stack has the names of modules, and behind them names of the user's and of JAX's
    functions.
    """
    return next((path[:end] for end in range(len(path), 0, -1) if path[:end] in beginnings), ())


def _names_of_rows(
    paths: Iterable[Path], pictures: Mapping[Path, tuple[list[Picture], list[Picture]]]
) -> dict[Path, str]:
    """The name of the row of every path: numbers become stars if the shardings are the same."""
    same: dict[tuple[Path, object], list[Path]] = defaultdict(list)
    for path in dict.fromkeys(paths):
        stem = tuple(re.sub(r"\d+", "*", part) for part in path)
        shown = [each for of in pictures.get(path, ([], [])) for each in of]
        # Shapes and shardings are compared, but not names, which differ in numbers.
        look = tuple((each.shape, each.cuts, each.partial) for each in shown)
        same[stem, look].append(path)
    stems = Counter(stem for stem, _ in same)
    names: dict[Path, str] = {}
    for (stem, _), members in same.items():
        name = "/".join(stem)
        if len(members) == 1:
            name = "/".join(members[0])
        elif stems[stem] > 1:
            # Layers with one stem that differ: a star would say that they do not.
            name = ", ".join("/".join(path) for path in members[:4])
            name += f" and {len(members) - 4} more" if len(members) > 4 else ""
        names |= dict.fromkeys(members, name)
    return names
