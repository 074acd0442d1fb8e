"""Compares the collectives and the memory of a compiled step with the prediction.

The collectives are read from the compiled program's HLO. XLA may combine several collectives into
one with several arrays, so arrays are counted instead of instructions.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from jaxcoll.aot.hlo import Instruction, Module, parse, permuted_pairs, replica_groups
from jaxcoll.kinds import kind_of, names_in
from tensorstate.collective_costs import CollectiveCostModel
from tensorstate.cost.cost import Cost
from tensorstate.errors import PlanError
from tensorstate.ir.graph import Graph
from tensorstate.ir.placements import MeshShape
from tensorstate.report.units import seconds

KINDS = {
    **{opcode: kind for kind, opcode in names_in("hlo").items()},
    "ragged-all-to-all": "all_to_all",
    "collective-permute": "permute",
}
# Asynchronous collectives are counted at their start; these suffixes continue or end them. The
# operands of a start are the arrays, and its result is a tuple of them and of buffers. So bytes are
# always those of the operands.
_LATER = ("-done", "-update")
_TENSOR = re.compile(r'op_name="[^"]*\btensor:([^/"]+)')


def tensor_scope(name: str) -> str:
    """The name scope that the collectives of a tensor have in HLO."""
    return f"tensor:{name.replace('/', '.')}"


class HloCollective(NamedTuple):
    """A collective of a compiled program.

    Attributes:
        kind: as in ``ReshardStep``; "permute" for the rounds of a schedule.
        axes: the mesh axes that its replica groups span; ``None`` for other groups.
        arrays: number of arrays.
        nbytes: bytes of all arrays, in the larger of a device's buffers.
        times: executions per training step.
        tensor: the tensor that it reshards, if the step names it (``Plan.constrain``).
        is_around: for a permute, whether every device sends.
    """

    kind: str
    axes: tuple[int, ...] | None
    arrays: int
    nbytes: int
    times: int
    tensor: str = ""
    is_around: bool = False


@dataclasses.dataclass(frozen=True)
class HloCollectives:
    """The collectives of a compiled program.

    Attributes:
        collectives: in execution order, without those of a single device.
        unknown_loops: number of loops with unknown trip count, whose body is counted once.
    """

    collectives: tuple[HloCollective, ...]
    unknown_loops: int


def read_hlo(text: str, mesh: MeshShape, lengths: frozenset[int] | None = None) -> HloCollectives:
    """The collectives of a program, from the text of ``jax.stages.Compiled.as_text()``.

    All branches of conditionals are counted, since the taken branch depends on data.

    Args:
        text: the HLO.
        mesh: the mesh on which it runs; the number of a device is its place in the mesh, the last
            axis fastest.
        lengths: lengths of the loops whose bodies are counted as often as they run; bodies of all
            others are counted once. By default all loops whose trip count XLA knows are included.

    Raises:
        FormatError: the text is not HLO, or has groups or pairs in an unknown notation.
        PlanError: the program is for another number of devices.
    """
    module = parse(text)
    if module.num_partitions != mesh.num_devices:
        raise PlanError(
            f"the program was compiled for {module.num_partitions} devices, but the plan is "
            f"for a mesh of {mesh.num_devices}; compile it on plan.make_mesh()"
        )
    walker = _HloWalker(module, mesh, lengths)
    collectives = tuple(walker.visit(module.entry, 1))
    return HloCollectives(collectives, walker.unknown_loops)


class _HloWalker:
    """Visits all instructions of a module, the body of a loop with its trip count."""

    def __init__(self, module: Module, mesh: MeshShape, lengths: frozenset[int] | None):
        self.module, self.mesh, self.lengths = module, mesh, lengths
        self.unknown_loops = 0
        self.lines = dict(_lines(mesh))

    def visit(self, computation: str, times: int) -> Iterator[HloCollective]:
        instructions = self.module.computations.get(computation, ())
        by_name = {i.name: i for i in instructions}
        for i in instructions:
            kind = KINDS.get(i.opcode.removesuffix("-start"))
            if i.opcode.endswith(_LATER):
                continue
            if kind is not None:
                yield from self._collective(kind, i, by_name, times)
            elif i.opcode == "while":
                # XLA annotates the trip count if it knows it. The condition may have collectives
                # too, such as those of a loss that has converged.
                count = self.module.trip_count(i)
                if self.lengths is not None and count not in self.lengths:
                    count = None  # a loop that the plan counts once, as data decides
                self.unknown_loops += count is None
                for part in ("condition", "body"):
                    inside = i.computation(part)
                    yield from self.visit(inside, times * (1 if count is None else count))
            else:
                for name in i.calls:
                    yield from self.visit(name, times)

    def _collective(
        self, kind: str, i: Instruction, by_name: Mapping[str, Instruction], times: int
    ) -> Iterator[HloCollective]:
        sizes = [by_name[name].nbytes for name in i.operands if name in by_name]
        if kind == "permute":
            is_around = len(permuted_pairs(i)) == self.module.num_partitions
            axes, nbytes = self._permuted(i), sum(sizes)
            yield HloCollective(kind, axes, len(sizes), nbytes, times, _tensor(i), is_around)
            return
        groups = replica_groups(i, self.module.num_partitions)
        size = groups.shape[1]
        if size > 1:
            # An all_to_all may take the parts that it sends as separate operands.
            is_tuple = kind_of(kind).is_pairwise and i.type.startswith("(")
            split = is_tuple and "dimensions=" not in i.attributes
            arrays = max(1, len(sizes) // size) if split else len(sizes)
            # Bytes of the larger buffer: the result of an all-gather, the operand of all others.
            nbytes = sum(sizes) * (size if kind_of(kind).copies else 1)
            yield HloCollective(kind, self._axes(groups), arrays, nbytes, times, _tensor(i))

    def _axes(self, groups: np.ndarray) -> tuple[int, ...] | None:
        wanted = frozenset(frozenset(group) for group in groups.tolist())
        return next((axes for axes, lines in self.lines.items() if lines == wanted), None)

    def _permuted(self, i: Instruction) -> tuple[int, ...] | None:
        """The fewest mesh axes along which every pair of a permute communicates."""
        pairs = [*map(frozenset, permuted_pairs(i))]
        for axes, lines in self.lines.items():
            if all(any(pair <= line for line in lines) for pair in pairs):
                return axes
        return None


def _tensor(i: Instruction) -> str:
    found = _TENSOR.search(i.attributes)
    return found[1] if found else ""


def _lines(mesh: MeshShape) -> Iterator[tuple[tuple[int, ...], frozenset[frozenset[int]]]]:
    """The groups of devices along every set of long axes, small sets first."""
    # Small sets come first so that a collective is given the fewest axes that explain it.
    for count in range(1, len(mesh.long_axes) + 1):
        for axes in itertools.combinations(mesh.long_axes, count):
            yield axes, frozenset(map(frozenset, mesh.replica_groups(axes).tolist()))


# ---------------------------------------------------------------------- comparison


class Row(NamedTuple):
    """Collectives of one kind along the same axes: how many, and their bytes.

    Bytes are those of the larger of a device's buffers. ``narrow`` and ``tiny`` are the predicted
    bytes of 16-bit and of 8-bit floats, ``padding`` those that slices of unequal sizes have more
    where they are padded to the largest.
    """

    kind: str
    axes: str
    predicted_count: int
    compiled_count: int
    predicted_bytes: int
    compiled_bytes: int
    narrow: int = 0
    tiny: int = 0
    padding: int = 0

    @property
    def agrees(self) -> bool:
        """Whether the compiled bytes equal the predicted ones."""
        return self.predicted_bytes == self.compiled_bytes

    @property
    def is_widened(self) -> bool:
        """Whether as many collectives send the bytes that they would have with wider floats."""
        # XLA on CPU sends 16-bit floats as 32-bit ones, and 8-bit ones as 16-bit or 32-bit ones.
        more = self.compiled_bytes - self.predicted_bytes
        wider = (self.narrow + self.tiny, self.narrow + 3 * self.tiny)
        return self.predicted_count == self.compiled_count and more > 0 and more in wider

    @property
    def is_padded(self) -> bool:
        """Whether collectives send at most the bytes that they have with padded slices."""
        more = self.compiled_bytes - self.predicted_bytes
        return self.compiled_count <= self.predicted_count and 0 < more <= self.padding

    @property
    def is_less(self) -> bool:
        """Whether XLA has left collectives out, and added none."""
        fewer = self.compiled_count <= self.predicted_count
        return fewer and self.compiled_bytes < self.predicted_bytes

    @property
    def is_explained(self) -> bool:
        """Whether the bytes agree, or differ for a cause that is known."""
        return self.agrees or self.is_widened or self.is_padded or self.is_less


class TensorRow(NamedTuple):
    """Bytes of the collectives of one tensor, as in ``Row``; all reductions are one kind."""

    tensor: str
    predicted_bytes: int
    compiled_bytes: int


@dataclasses.dataclass(frozen=True)
class HloComparison:
    """A comparison of the prediction with the compiled program.

    Attributes:
        rows: the collectives, by kind and axes.
        unknown_loops: the same as in ``HloCollectives``.
        predicted_inputs, compiled_inputs: bytes of the arguments on a device.
        predicted_temporaries, compiled_temporaries: bytes beside them at the peak; as compiled,
            temporaries and results that take no argument's place. On CPU devices, whose memory is
            the host's, copies on the host are among them.
        predicted_seconds, compiled_seconds: seconds of all collectives on the plan's network: those
            along several axes taken axis by axis, permutes as exchanges, and those of pipeline
            stages and of ring attention as sends. 0 without a network.
        by_tensor: the tensors whose bytes differ, where the step names them; the row without a name
            has the collectives that no tensor of the plan asks for.
        predicted_host, compiled_host: bytes on the host, of a device that has its own memory.
    """

    rows: tuple[Row, ...]
    unknown_loops: int
    predicted_inputs: int
    compiled_inputs: int
    predicted_temporaries: int
    compiled_temporaries: int
    predicted_seconds: float = 0.0
    compiled_seconds: float = 0.0
    by_tensor: tuple[TensorRow, ...] = ()
    predicted_host: int = 0
    compiled_host: int = 0

    @property
    def agrees(self) -> bool:
        """Whether the bytes agree for every kind of collective and mesh axis.

        The bytes of a loop whose length depends on data are compared per iteration.
        """
        return all(row.agrees for row in self.rows)

    @property
    def is_explained(self) -> bool:
        """Whether bytes agree but for floats that a CPU widens, and for what XLA leaves out."""
        return all(row.is_explained for row in self.rows)

    def _verdict(self) -> list[str]:
        if self.agrees or not self.is_explained:
            return ["bytes agree" if self.agrees else "bytes do not agree"]
        lines = ["bytes agree"]
        if any(row.is_widened for row in self.rows):
            lines.append(
                "  floats of 16 and 8 bits: XLA on CPU sends them wider; compiled for GPU or TPU "
                "they keep their width"
            )
        if any(row.is_padded for row in self.rows):
            lines.append(
                "  slices of unequal sizes: XLA on CPU has no all_to_all of these, and sends all "
                "as long as the longest may be; the plan counts those that are expected"
            )
        if less := [row for row in self.rows if row.is_less]:
            nbytes = sum(row.predicted_bytes - row.compiled_bytes for row in less)
            lines.append(
                f"  {nbytes:,} bytes that XLA does not send: it knows their values as it compiles, "
                "sends once what two operators ask for, or nothing reads them"
            )
        return lines

    def __str__(self) -> str:
        lines = [
            f"{'collective':16} {'axis':14} {'count':>14} {'bytes':>32}",
            f"{'':31} {'plan':>7}{'HLO':>7} {'plan':>16}{'HLO':>16}",
        ]
        for row in self.rows:
            mark = "" if row.agrees else "  differs"
            lines.append(
                f"{row.kind:16} {row.axes:14} {row.predicted_count:>7}{row.compiled_count:>7} "
                f"{row.predicted_bytes:>16,}{row.compiled_bytes:>16,}{mark}"
            )
        for name, predicted, compiled in (
            ("memory of arguments", self.predicted_inputs, self.compiled_inputs),
            ("memory beside them", self.predicted_temporaries, self.compiled_temporaries),
            ("memory of the host", self.predicted_host, self.compiled_host),
        ):
            if name.endswith("host") and not predicted and not compiled:
                continue
            lines.append(f"{name:46} {predicted:>16,}{compiled:>16,}")
        if self.predicted_seconds or self.compiled_seconds:
            times = f"{seconds(self.predicted_seconds):>16}{seconds(self.compiled_seconds):>16}"
            lines.append(f"{'time of collectives on the network':46} {times}")
        for row in self.by_tensor:
            name = row.tensor or "of no tensor of the plan"
            lines.append(f"  {name:44} {row.predicted_bytes:>16,}{row.compiled_bytes:>16,}")
        per = ", those of loops whose length depends on data per iteration"
        verdict, *causes = self._verdict()
        verdict += per * bool(self.unknown_loops) + " but for" * bool(causes)
        return "\n".join([*lines, verdict, *causes])


def compare_with_hlo(
    compiled: jax.stages.Compiled,
    mesh: MeshShape,
    cost: Cost,
    network: CollectiveCostModel | None = None,
    names: Mapping[int, str] | None = None,
    held: float = 0.0,
    graph: Graph | None = None,
) -> HloComparison:
    """A compiled step beside its prediction.

    Args:
        compiled: the step of ``Plan.apply(collectives=lax_collectives)``, compiled. Schedules
            compile to permutes, which cannot be matched.
        mesh: the device mesh.
        cost: the prediction.
        network: the network that prices the compiled collectives.
        names: names of the tensors, for a step that names its collectives by them.
        held: bytes of collectives ahead and behind, in addition to those of the cost, on devices
            that overlap (``StepSchedule.held``).
        graph: the graph of the prediction, with the dtypes of tensors and the lengths of loops.
            Without it XLA's counts of iterations are believed, and no float is known to be narrow.

    Raises:
        FormatError: the compiler does not show its HLO, or shows it in an unknown notation.
        PlanError: the program is for another number of devices.
    """
    program = read_hlo(compiled.as_text() or "", mesh, _lengths(graph))
    rows = _rows(program, mesh, cost, graph)
    sends = frozenset(axis for kind, axis in cost.count_by_collective if kind == "permute")
    memory = compiled.memory_analysis()
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes if memory else 0
    on_host = memory.host_temp_size_in_bytes if memory else 0
    together = 0 if on_host else cost.memory.host
    return HloComparison(
        rows,
        program.unknown_loops,
        cost.memory.inputs,
        memory.argument_size_in_bytes if memory else 0,
        cost.memory.peak - cost.memory.inputs + round(held) + together,
        memory.temp_size_in_bytes + results if memory else 0,
        0.0 if network is None else cost.communication,
        0.0 if network is None else network_seconds(program.collectives, network, sends),
        () if names is None else _by_tensor(program.collectives, cost, names, rows),
        cost.memory.host - together,
        on_host,
    )


def _rows(
    program: HloCollectives, mesh: MeshShape, cost: Cost, graph: Graph | None
) -> tuple[Row, ...]:
    """Predicted and compiled collectives, by kind and axes."""
    count: dict[tuple[str, str], int] = defaultdict(int)
    nbytes: dict[tuple[str, str], int] = defaultdict(int)
    for collective in program.collectives:
        # Groups along no axes of the mesh belong to a collective that XLA has added.
        along = collective.axes
        axes = "other" if along is None else " ".join(mesh.names[axis] for axis in along)
        count[collective.kind, axes] += collective.arrays * collective.times
        nbytes[collective.kind, axes] += collective.nbytes * collective.times
    sent = {} if graph is None else bytes_by_dtype(graph, cost)
    padding: dict[tuple[str, int], int] = defaultdict(int)
    for send in cost.inner_sends:
        padding[send.kind, send.axis] += send.times * send.padding
    expected = {(kind, mesh.names[axis]): (kind, axis) for kind, axis in cost.count_by_collective}
    return tuple(
        Row(
            *key,
            cost.count_by_collective.get(expected.get(key, ("", 0)), 0),
            count[key],
            cost.bytes_by_collective.get(expected.get(key, ("", 0)), 0),
            nbytes[key],
            *_narrow(sent.get(expected.get(key, ("", 0)), Counter())),
            padding.get(expected.get(key, ("", 0)), 0),
        )
        for key in sorted({*expected, *count})
    )


def bytes_by_dtype(graph: Graph, cost: Cost) -> dict[tuple[str, int], Counter[str]]:
    """By (kind, mesh axis), the bytes of collectives of each dtype."""
    sent: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for reshard in cost.reshards:
        dtype = str(graph.tensors[reshard.tensors[0]].dtype)
        for step, num_repeats in reshard.counted_steps:
            sent[step.kind, step.axis][dtype] += reshard.multiplicity * num_repeats * step.nbytes
    for send in cost.inner_sends:
        sent[send.kind, send.axis][send.dtype] += send.times * send.nbytes
    return sent


def _narrow(sent: Counter[str]) -> tuple[int, int]:
    """Bytes of 16-bit and of 8-bit floats."""
    tiny = sum(nbytes for dtype, nbytes in sent.items() if dtype.startswith("float8"))
    return sent["bfloat16"] + sent["float16"], tiny


def _lengths(graph: Graph | None) -> frozenset[int] | None:
    """The known lengths of a graph's loops; ``None`` if all are known."""
    if graph is None or all(loop.length is not None for loop in graph.loops):
        return None
    return frozenset(loop.length for loop in graph.loops if loop.length is not None)


def network_seconds(
    collectives: Iterable[HloCollective],
    network: CollectiveCostModel,
    sends: frozenset[int] = frozenset(),
) -> float:
    """Seconds of collectives on a network, one after the other.

    Args:
        sends: mesh axes along which permutes are sends from a device to the next one.
    """

    def seconds_of(c: HloCollective) -> float:
        if c.kind == "permute" and c.axes and sends.issuperset(c.axes):
            return network.send_seconds(c.axes[0], c.nbytes, around=c.is_around)
        axes = network.mesh.long_axes if c.axes is None else c.axes
        return _seconds(c.kind, axes, c.nbytes, network)

    return math.fsum(c.times * seconds_of(c) for c in collectives)


def _seconds(kind: str, axes: tuple[int, ...], nbytes: int, network: CollectiveCostModel) -> float:
    """Seconds of a collective along the first axis, and of one along the others within it."""
    if not axes:
        return 0.0
    # For an all-reduce of two axes: reduce-scatter along the first, all-reduce of the parts along
    # the second, all-gather along the first. An all-to-all sends all of its bytes along each.
    (first, *others), one = axes, network.collective_seconds
    rest, part = tuple(others), nbytes // network.mesh.sizes[axes[0]]
    if kind == "permute" or kind_of(kind).is_pairwise:
        return one("all_to_all", first, nbytes) + _seconds(kind, rest, nbytes, network)
    if rest:
        there = math.fsum(one(phase.name, first, nbytes) for phase in kind_of(kind).phases)
        return there + _seconds(kind, rest, part, network)
    return one(kind, first, nbytes)


def _by_tensor(
    collectives: Sequence[HloCollective],
    cost: Cost,
    names: Mapping[int, str],
    rows: Iterable[Row],
) -> tuple[TensorRow, ...]:
    """The tensors whose bytes differ, those with the most bytes beyond the plan first."""
    if not any(collective.tensor for collective in collectives):
        # A program that names no tensor, as that of ``Plan.apply``: it lacks none of them. If the
        # whole differs, only its collectives are known.
        nbytes = sum(collective.nbytes * collective.times for collective in collectives)
        differs = not all(row.is_explained for row in rows)
        return (TensorRow("", 0, nbytes),) if differs else ()
    # Names of scopes; a slash in one would begin another scope: see ``tensor_scope``.
    predicted: dict[str, int] = defaultdict(int)
    compiled: dict[str, int] = defaultdict(int)
    for reshard in cost.reshards:
        nbytes = sum(n * step.nbytes for step, n in reshard.counted_steps if step.kind != "slice")
        for tensor in reshard.tensors:
            predicted[tensor_scope(names[tensor]).removeprefix("tensor:")] += nbytes
    for collective in collectives:
        compiled[collective.tensor] += collective.nbytes * collective.times
    tensors = (
        TensorRow(name, predicted.get(name, 0), compiled.get(name, 0))
        for name in {*predicted, *compiled}
    )
    differing = (row for row in tensors if row.predicted_bytes != row.compiled_bytes)
    return tuple(sorted(differing, key=lambda r: (r.predicted_bytes - r.compiled_bytes, r.tensor)))
