"""Summary: the communication of a compiled program, read from its scheduled HLO.

The instructions of a scheduled module stand in the order in which they run, and asynchronous ones
are two: a start and a done. So permutes are in flight between the two, and what stands in between
runs meanwhile. A *burst* is the time from the first start to the last done::

    collective-permute-start a        burst: 2 permutes, started together,
    collective-permute-start b               1 kernel meanwhile
    fusion
    collective-permute-done a
    collective-permute-done b         in flight: 0
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Mapping

import jax

from jaxcoll.aot.hlo import Instruction, Module, parse, permuted_pairs, replica_groups
from jaxcoll.errors import FormatError
from jaxcoll.numerics import checks

# Collectives that XLA has of its own; schedules run as collective-permute only.
NATIVE = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-broadcast")
_PERMUTE = "collective-permute"
# Instructions that start no kernel.
_FREE = frozenset(
    (
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota"),
        *("partition-id", "replica-id", "opt-barrier", "copy-start", "copy-done", "async-update"),
    )
)
# A computation of these opcodes alone moves bytes and computes nothing.
_MOVES = frozenset(
    ("parameter", "bitcast", "copy", "transpose", "reshape", "tuple", "get-tuple-element")
)


@dataclasses.dataclass(frozen=True)
class Burst:
    """The time from the start of a permute until no permute is in flight.

    Attributes:
        permutes: started in it.
        launches: number of launches of kernels; one per permute, or one per group of permutes.
        together: whether all of them start before any is awaited.
        kernels: other kernels that run meanwhile.
        matmuls: those of them that multiply matrices.
        times: how often it happens, when it is in a loop.
    """

    permutes: int
    launches: int
    together: bool
    kernels: int
    matmuls: int
    times: int


@dataclasses.dataclass(frozen=True)
class Summary:
    """The work of one device in one call of a compiled program. Loops count as often as they run.

    Attributes:
        bursts: the communication, in order.
        in_flight: most permutes in flight at once.
        native: collectives of XLA's own, by opcode.
        copies: times of copies from main memory to main memory, by their bytes.
        kernels: kernels other than communication.
        matmuls: those of them that multiply matrices.
        wire_bytes: bytes that a device sends, on average over devices: of permutes all it hands
            over, of native collectives what rings send (all_reduce twice what all_gather does).
        temp_bytes, argument_bytes, output_bytes: memory, as the compiler states it.
        unknown_loops: loops of which the text does not say how often they run, counted once.
    """

    bursts: tuple[Burst, ...]
    in_flight: int
    native: Mapping[str, int]
    copies: Mapping[int, int]
    kernels: int
    matmuls: int
    wire_bytes: float
    temp_bytes: int
    argument_bytes: int
    output_bytes: int
    unknown_loops: int

    @property
    def permutes(self) -> int:
        """Permutes executed."""
        return sum(burst.permutes * burst.times for burst in self.bursts)

    @property
    def launches(self) -> int:
        """Launches of communication kernels, native collectives included."""
        own = sum(burst.launches * burst.times for burst in self.bursts)
        return own + sum(self.native.values())

    @property
    def sizes(self) -> tuple[int, ...]:
        """Permutes of each burst, in the order in which they run."""
        return tuple(burst.permutes for burst in self.bursts for _ in range(burst.times))

    @property
    def together(self) -> bool:
        """Whether in every burst all permutes start before any is awaited."""
        return all(burst.together for burst in self.bursts)

    @property
    def covered_matmuls(self) -> int:
        """Matrix multiplications that run while a permute is in flight."""
        return sum(burst.matmuls * burst.times for burst in self.bursts)

    @property
    def temp_ratio(self) -> float:
        """Temporary memory over that of the result."""
        return self.temp_bytes / max(self.output_bytes, 1)

    def copies_of(self, nbytes: int) -> int:
        """Copies of at least that many bytes."""
        return sum(times for size, times in self.copies.items() if size >= nbytes)


def summarize(compiled: jax.stages.Compiled) -> Summary:
    """The summary of a compiled program, of what ``jit(f).lower(...).compile()`` gives.

    Raises:
        FormatError: a compiler that does not show its HLO or state the memory it takes.
    """
    checks.instance(compiled, jax.stages.Compiled, "compiled", FormatError)
    memory, text = compiled.memory_analysis(), compiled.as_text()
    if memory is None or text is None:
        raise FormatError(
            "this compiler shows neither HLO nor memory; only programs that XLA compiled "
            "can be read"
        )
    return summarize_module(
        parse(text),
        temp_bytes=int(memory.temp_size_in_bytes),
        argument_bytes=int(memory.argument_size_in_bytes),
        output_bytes=int(memory.output_size_in_bytes),
    )


def summarize_module(
    module: Module, *, temp_bytes: int = 0, argument_bytes: int = 0, output_bytes: int = 0
) -> Summary:
    """The summary of a module, with memory as it is given."""
    walk = _Walk(checks.instance(module, Module, "module", FormatError))
    walk.visit(module.entry, 1)
    walk.close(1)
    return Summary(
        tuple(walk.bursts),
        walk.in_flight,
        dict(walk.native),
        dict(walk.copies),
        walk.kernels,
        walk.matmuls,
        walk.wire_bytes,
        temp_bytes,
        argument_bytes,
        output_bytes,
        walk.unknown_loops,
    )


# ---------------------------------------------------------------------- walking


class _Walk:
    """Goes through a module in the order in which it runs."""

    def __init__(self, module: Module):
        self.module = module
        self.bursts: list[Burst] = []
        self.native: collections.Counter[str] = collections.Counter()
        self.copies: collections.Counter[int] = collections.Counter()
        self.in_flight = self.kernels = self.matmuls = self.unknown_loops = 0
        self.wire_bytes = 0.0
        self._flying: dict[str, int] = {}
        self._reset()

    def _reset(self) -> None:
        self._permutes = self._launches = self._burst_kernels = self._burst_matmuls = 0
        self._awaited, self._together = False, True

    def visit(self, computation: str, times: int) -> None:
        instructions = self.module.instructions(computation)
        by_name = {i.name: i for i in instructions}
        for i in instructions:
            # Loops, calls and branches run their computations in place; all other computations (of
            # fusions, of sums) belong to the kernel that their instruction is.
            if i.opcode == "while":
                count = self.module.trip_count(i)
                self.unknown_loops += count is None
                self.visit(i.computation("body"), times * (1 if count is None else count))
            elif i.opcode in ("call", "conditional"):
                for name in i.calls:
                    self.visit(name, times)
            elif i.opcode.endswith("-done") and i.operands and i.operands[0] in self._flying:
                self._finish(i.operands[0], times)
            elif not i.opcode.endswith("-done") and i.opcode not in _FREE:
                self._run(i, by_name, times)
            elif i.opcode == "copy-start":
                self._copied(i, None, times)

    def close(self, times: int) -> None:
        """Ends the burst that is under way, if one is."""
        if self._permutes:
            burst = Burst(
                self._permutes,
                self._launches,
                self._together,
                self._burst_kernels,
                self._burst_matmuls,
                times,
            )
            self.bursts.append(burst)
        self._reset()

    # ------------------------------------------------------------------ instructions

    def _run(self, i: Instruction, by_name: Mapping[str, Instruction], times: int) -> None:
        # A fusion or an async computation is one kernel; the collectives in it count by themselves.
        inside, devices = [i, *self._inside(i)], self.module.num_partitions
        permutes = [p for p in inside if p.opcode in (_PERMUTE, f"{_PERMUTE}-start")]
        natives = [
            (name, p) for p in inside for name in NATIVE if p.opcode in (name, f"{name}-start")
        ]
        for name, p in natives:
            self.native[name] += times
            # A ring sends (n - 1) / n of the whole buffer, twice for a sum on all ranks. The buffer
            # is the result of an all-reduce, n results of a reduce-scatter, and the largest part of
            # all others' results, which may have their operands in them as well.
            size = replica_groups(p, devices).shape[1]
            share = (size - 1) / size
            sent = {"all-reduce": 2 * share * p.nbytes, "reduce-scatter": (size - 1) * p.nbytes}
            self.wire_bytes += times * sent.get(name, share * p.largest_part)
        for p in permutes:
            pairs = sum(src != dst for src, dst in permuted_pairs(p))
            self.wire_bytes += times * (p.largest_part * pairs / devices)
        if permutes:
            self._start(i, len(permutes), times)
        elif not natives:
            self._kernel(i, inside, by_name, times)

    def _inside(self, i: Instruction) -> list[Instruction]:
        """All instructions of the computations that an instruction runs as one."""
        found = []
        for name in i.calls:
            for inner in self.module.computations.get(name, ()):
                found += [inner, *self._inside(inner)]
        return found

    def _start(self, i: Instruction, permutes: int, times: int) -> None:
        # A start after a done, the burst going on: some of its permutes wait for others.
        self._together &= not self._awaited
        self._permutes += permutes
        self._launches += 1
        self._flying[i.name] = permutes
        self.in_flight = max(self.in_flight, sum(self._flying.values()))
        if not i.opcode.endswith("-start"):
            self._finish(i.name, times)

    def _finish(self, name: str, times: int) -> None:
        self._awaited = True
        del self._flying[name]
        if not self._flying:
            self.close(times)

    def _kernel(self, i, inside, by_name: Mapping[str, Instruction], times: int) -> None:
        multiplies = any(
            re.search(r"gemm|matmul", p.attribute("custom_call_target") or "")
            if p.opcode == "custom-call"
            else p.opcode in ("dot", "convolution")
            for p in inside
        )
        self.kernels += times
        self.matmuls += multiplies * times
        if self._flying:
            self._burst_kernels += 1
            self._burst_matmuls += multiplies
        only_moves = i.opcode == "fusion" and all(p.opcode in _MOVES for p in inside[1:])
        if i.opcode in ("copy", "reshape", "transpose") or only_moves:
            self._copied(i, by_name.get(i.operands[0]) if i.operands else None, times)

    def _copied(self, i: Instruction, source: Instruction | None, times: int) -> None:
        # Into another memory space and back is how the compiler uses fast memory, not a copy.
        memories = i.memories | (source.memories if source else frozenset())
        if memories == {"0"}:
            self.copies[i.largest_part] += times
