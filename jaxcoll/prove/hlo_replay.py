"""An HLO program run on all ranks at once, with contributions instead of numbers.

Elements are followed one by one: data as ``Value`` (a chunk is an element of the collective's
buffer), and as a number where the program computes places. A rank that receives nothing from a
permute holds zeros, and a zero contributes nothing.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxcoll.prove.answers import NotProved, NotRead
from jaxcoll.prove.contents import Buffers, Value, summed
from jaxcoll.prove.hlo import Instruction, Module, Shape, base, groups, pairs, parts
from jaxcoll.prove.kinds import KINDS

_MOST_WORK = 2**24  # elements of all results, on all ranks
_MOST_ITERATIONS = 2**16
_FLOATS = ("f16", "bf16", "f32", "f64", "f8e4m3fn", "f8e5m2")
_NUMBERS: dict[str, Callable] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor, "maximum": max, "minimum": min,
    "divide": lambda a, b: int(a / b) if b else -1, "remainder": lambda a, b: math.fmod(a, b),
    "shift-left": lambda a, b: a << b if 0 <= b < 64 else 0,
    "shift-right-logical": lambda a, b: a >> b if 0 <= b < 64 else 0,
}  # fmt: skip
_COMPARED = {"EQ": operator.eq, "NE": operator.ne, "LT": operator.lt, "LE": operator.le,
             "GT": operator.gt, "GE": operator.ge}  # fmt: skip
_AS_IT_IS = (
    "copy", "bitcast", "reshape", "convert", "optimization-barrier", "copy-start", "copy-done",
    "collective-permute-done", "all-reduce-done", "all-gather-done",
)  # fmt: skip

Array = list  # of elements, in row-major order


class Wrong(NamedTuple):
    """An invalid sum; programs may compute one on a rank that does not use it."""

    error: NotProved


class Held(NamedTuple):
    """An array on all ranks, or several arrays."""

    shape: Shape | None
    ranks: list  # an array per rank, or the parts of a tuple


def replay(module: Module, kind: str, roots: tuple[int, ...]) -> tuple[int, int]:
    """The numbers of chunks and messages of a program of one collective with one array.

    Raises:
        NotProved: a rank ends with something else; the error names rank and element.
        NotRead: operations do more with data than move and add it, or there are too many elements.
    """
    run = _Run(module)
    body = module.computations[module.entry]
    given = [each for each in body if each.opcode == "parameter"]
    if len(given) != 1 or len(given[0].shapes) != 1 or given[0].shapes[0].kind not in _FLOATS:
        raise NotRead("a program that is replayed takes one array of floats; give one of a single "
                      "collective, or leave --as out")  # fmt: skip
    shape, ranks = given[0].shapes[0], module.ranks
    chunks = shape.size * (ranks if KINDS[kind].takes_shard else 1)
    buffers = Buffers(kind, ranks, chunks, False, roots)
    run.count(shape.size)
    # In a broadcast, ranks other than the root have data that the result must not contain.
    unasked = [Wrong(NotProved(f"the result takes data of rank {r}, not of the root", r))
               for r in range(ranks)]  # fmt: skip
    start = [[buffers.given(r, "i", i) or unasked[r] for i in range(shape.size)]
             for r in range(ranks)]  # fmt: skip
    end = run.of(module.entry, [Held(shape, start)], 0)
    while end.shape is None and len(end.ranks) == 1:
        end = end.ranks[0]
    share = buffers.share if KINDS[kind].gives_shard else chunks
    if end.shape is None or end.shape.size != share:
        size = "several arrays" if end.shape is None else f"{end.shape.size} elements"
        raise NotProved(f"the result is {size}, {kind} of {chunks} has {share}")
    for rank in range(ranks):
        for at in range(share):
            found = end.ranks[rank][at]
            if isinstance(found, Wrong):
                raise found.error
            buffers.held[rank, "o", at] = found if isinstance(found, Value) else Value(-1, 0)
    buffers.check_end()
    return chunks, run.messages


class _Run:
    def __init__(self, module: Module):
        self.module, self.work, self.messages = module, 0, 0

    def count(self, size: int) -> None:
        self.work += size * self.module.ranks
        if self.work > _MOST_WORK:
            raise NotRead(f"more than {_MOST_WORK} elements to follow; compile the program for a "
                          "smaller buffer, and leave its schedule as it is")  # fmt: skip

    def of(self, name: str, given: Sequence[Held], deep: int) -> Held:
        """The result of a computation."""
        if deep > 32 or name not in self.module.computations:
            raise NotRead(f"no computation is called {name[:60]}, or it calls itself")
        values: dict[str, Held] = {}
        for each in self.module.computations[name]:
            self.count(1)
            named = each.operands if each.opcode not in ("constant", "parameter") else []
            try:
                operands = [_part(values, operand) for operand in named]
                is_given = each.opcode == "parameter"
                made = given[each.parameter] if is_given else self._one(each, operands, deep)
                values[each.name] = _checked(each, made)
            except (NotProved, NotRead):
                raise
            except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
                what = f"{type(error).__name__} {error}"
                raise NotRead(f"{each.place} is not replayed: {what[:80]}") from None
        return values[self.module.roots[name]]

    def _one(self, each: Instruction, given: list[Held], deep: int) -> Held:
        name, ranks = each.opcode, range(self.module.ranks)
        if name == "tuple":
            return Held(None, given)
        if name == "get-tuple-element":
            return given[0].ranks[each.numbers("index")[0]]
        if name in ("fusion", "call"):
            return self.of((each.said("calls") or each.named("to_apply")).lstrip("%"), given,
                           deep + 1)  # fmt: skip
        if name == "while":
            return self._loop(each, given[0], deep)
        if name == "conditional":
            raise NotRead(f"{each.place}: conditionals are not replayed")
        shape = each.shapes[-1]
        self.count(shape.size)
        if base(each):
            return self._collective(each, given, shape)
        if name in _AS_IT_IS:
            return self._same(each, given, shape)
        if name == "constant":
            return Held(shape, [_constant(each, shape)] * len(ranks))
        if name == "partition-id":
            return Held(shape, [[r % self.module.partitions] for r in ranks])
        if name == "replica-id":
            return Held(shape, [[r // self.module.partitions] for r in ranks])
        return Held(shape, [_Local(each, shape, given, r).result() for r in ranks])

    def _same(self, each: Instruction, given: list[Held], shape: Shape) -> Held:
        held = given[0]
        if held.shape is None:
            return held if each.opcode == "optimization-barrier" else held.ranks[-1]
        plain = all(s.layout == tuple(range(len(s.dims)))[::-1] for s in (shape, held.shape))
        if each.opcode == "bitcast" and not plain:
            raise NotRead(f"{each.place}: layouts other than rows are not replayed")
        if each.opcode in ("copy", "convert") and held.shape.dims != shape.dims:
            raise NotRead(f"{each.place}: its result is not of the shape of its operand")
        if each.opcode == "convert":
            return Held(shape, [[_wrapped(e, shape.kind) for e in row] for row in held.ranks])
        return Held(shape, held.ranks)

    def _loop(self, each: Instruction, state: Held, deep: int) -> Held:
        for _ in range(_MOST_ITERATIONS):
            goes_on = {row[0] for row in self.of(each.named("condition"), [state], deep + 1).ranks}
            if len(goes_on) > 1:
                raise NotProved(f"{each.place} ends on some ranks before others")
            if goes_on == {False}:
                return state
            state = self.of(each.named("body"), [state], deep + 1)
        raise NotRead(f"{each.place}: more than {_MOST_ITERATIONS} iterations")

    def _collective(self, each: Instruction, given: list[Held], shape: Shape) -> Held:
        name, held = base(each), given[0]
        if len(given) > 1 or held.shape is None:
            raise NotRead(f"{each.place}: several arrays at once are not replayed")
        rows: list[Array] = [[0.0] * shape.size for _ in range(self.module.ranks)]
        if name == "collective-permute":
            for a, b in pairs(self.module, each):
                rows[b] = held.ranks[a]
                self.messages += a != b
            return self._begun(each, Held(shape, rows))
        axis = (each.numbers("dimensions") or [0])[0]
        if axis or name not in ("all-reduce", "all-gather", "reduce-scatter"):
            raise NotRead(f"{each.place}: only all-reduce, and all-gather and reduce-scatter of "
                          "dimension 0 are replayed")  # fmt: skip
        for group in groups(self.module, each):
            if name == "all-gather":
                whole = [e for rank in group for e in held.ranks[rank]]
            else:
                columns = zip(*(held.ranks[rank] for rank in group), strict=True)
                whole = [_sum(column, group[0]) for column in columns]
            size = len(whole) // len(group) if name == "reduce-scatter" else len(whole)
            if size != shape.size:
                raise NotProved(f"{each.place}: {size} elements of groups of {len(group)} ranks do "
                                f"not fill its result of {shape.size}")  # fmt: skip
            for at, rank in enumerate(group):
                rows[rank] = whole[at * size : (at + 1) * size] if size < len(whole) else whole
            self.messages += len(group)
        return self._begun(each, Held(shape, rows))

    def _begun(self, each: Instruction, result: Held) -> Held:
        return Held(None, [result]) if each.opcode.endswith("-start") else result


def _checked(each: Instruction, made: Held) -> Held:
    """A result, after checking that it has the shape that the program states."""
    if made.shape is not None and (
        made.shape.dims != each.shapes[-1].dims or {len(r) for r in made.ranks} != {made.shape.size}
    ):
        raise NotRead(f"{each.place}: its result is not of the shape that it says")
    return made


def _part(values: dict[str, Held], operand: str) -> Held:
    """An operand; ``name#2`` is the third part of a tuple."""
    name, *path = operand.split("#")
    held = values[name]
    for at in path:
        held = held.ranks[int(at)]
    return held


class _Local:
    """An operation of one rank, as the source of each element of its result."""

    def __init__(self, each: Instruction, shape: Shape, given: list[Held], rank: int):
        self.each, self.shape, self.rank = each, shape, rank
        self.dims = [held.shape.dims for held in given if held.shape is not None]
        self.rows = [held.ranks[rank] for held in given]

    def result(self) -> Array:
        name = self.each.opcode
        if name in (*_NUMBERS, "compare", "not", "negate"):
            self._fits(self.dims[0], inside=len(set(self.dims)) == 1)
        if name in _NUMBERS:
            return [self._pair(name, a, b) for a, b in zip(*self.rows, strict=True)]
        if name == "compare":
            by = _COMPARED[self.each.named("direction")]
            return [by(_number(a), _number(b)) for a, b in zip(*self.rows, strict=True)]
        if name == "select":
            chosen, yes, no = self.rows
            chosen = chosen * (len(yes) if len(chosen) == 1 else 1)
            return [a if c else b for c, a, b in zip(chosen, yes, no, strict=True)]
        if name in ("not", "negate"):
            return [(not e) if isinstance(e, bool) else _wrapped(-e - (name == "not"),
                    self.shape.kind) for e in map(_number, self.rows[0])]  # fmt: skip
        made = getattr(self, "_" + name.replace("-", "_"), None)
        if made is None:
            raise NotRead(f"{self.each.place} is not replayed: data are only moved and added")
        return made()

    def _pair(self, name: str, a, b):
        if name == "add" and (isinstance(a, (Value, Wrong)) or isinstance(b, (Value, Wrong))):
            return _sum((a, b), self.rank)
        if name == "multiply" and isinstance(a, Value) and b == 1:
            return a
        return _wrapped(_NUMBERS[name](_number(a), _number(b)), self.shape.kind)

    def _fits(self, dims: Sequence[int], *, inside: bool = True) -> None:
        """Check that the operation gives the shape of the result from its operands' shapes."""
        if tuple(dims) != self.shape.dims or not inside:
            raise NotRead(f"{self.each.place}: its sizes and those of its shape differ")

    def _at(self, place: Callable[[tuple[int, ...]], Sequence[int]]) -> Array:
        """All elements of the result, each from a place of the operand."""
        stride, row = _strides(self.dims[0]), self.rows[0]
        return [row[sum(map(operator.mul, place(at), stride))]
                for at in itertools.product(*map(range, self.shape.dims))]  # fmt: skip

    def _iota(self) -> Array:
        axis = self.each.numbers("iota_dimension")[0]
        return [at[axis] for at in itertools.product(*map(range, self.shape.dims))]

    def _broadcast(self) -> Array:
        axes = self.each.numbers("dimensions")
        self._fits(self.shape.dims, inside=[self.shape.dims[i] for i in axes] == [*self.dims[0]])
        return self._at(lambda at: [at[axis] for axis in axes])

    def _transpose(self) -> Array:
        axes = self.each.numbers("dimensions")
        self._fits([self.dims[0][axis] for axis in axes])
        return self._at(lambda at: [at[axes.index(i)] for i in range(len(axes))])

    def _slice(self) -> Array:
        cuts = [[int(n) for n in part.strip(" []").split(":")]
                for part in parts(self.each.named("slice").strip("{}"))]  # fmt: skip
        step = [cut[2] if len(cut) > 2 else 1 for cut in cuts]
        self._fits([-((a - b) // s) for (a, b, *_), s in zip(cuts, step, strict=True)], inside=all(
            0 <= c[0] <= c[1] <= n for c, n in zip(cuts, self.dims[0], strict=True)))  # fmt: skip
        return self._at(lambda at: [c[0] + s * i for c, s, i in zip(cuts, step, at, strict=True)])

    def _starts(self, first: int, inner: Sequence[int]) -> list[int]:
        """Starts of a window, moved so that the window is inside."""
        window = zip(inner, self.dims[0], strict=True)
        self._fits(self.shape.dims, inside=all(m <= n for m, n in window))
        found = [_number(row[0]) for row in self.rows[first:]]
        return [min(max(0, s), n - m) for s, n, m in zip(found, self.dims[0], inner, strict=True)]

    def _dynamic_slice(self) -> Array:
        self._fits(self.each.numbers("dynamic_slice_sizes"))
        start = self._starts(1, self.shape.dims)
        return self._at(lambda at: [s + i for s, i in zip(start, at, strict=True)])

    def _dynamic_update_slice(self) -> Array:
        self._fits(self.dims[0])
        start, stride = self._starts(2, self.dims[1]), _strides(self.dims[0])
        made = list(self.rows[0])
        places = itertools.product(*map(range, self.dims[1]))
        for value, at in zip(self.rows[1], places, strict=True):
            made[sum((s + i) * w for s, i, w in zip(start, at, stride, strict=True))] = value
        return made

    def _concatenate(self) -> Array:
        axis = self.each.numbers("dimensions")[0]
        first = self.dims[0]
        others = {dims[:axis] + dims[axis + 1 :] for dims in self.dims}
        along = sum(dims[axis] for dims in self.dims)
        self._fits([*first[:axis], along, *first[axis + 1 :]], inside=len(others) == 1)
        inner = [math.prod(dims[axis:]) for dims in self.dims]
        outer = math.prod(self.shape.dims[:axis])
        return [e for o in range(outer) for row, n in zip(self.rows, inner, strict=True)
                for e in row[o * n : (o + 1) * n]]  # fmt: skip

    def _pad(self) -> Array:
        made, stride = [self.rows[1][0]] * self.shape.size, _strides(self.shape.dims)
        edges = [tuple(int(n) for n in part.split("_"))
                 for part in self.each.named("padding").split("x")]  # fmt: skip
        self._fits([e[0] + n + e[1] for e, n in zip(edges, self.dims[0], strict=True)])
        for value, at in zip(self.rows[0], itertools.product(*map(range, self.dims[0])),
                             strict=True):  # fmt: skip
            place = [e[0] + i for e, i in zip(edges, at, strict=True)]
            if any(len(e) > 2 for e in edges) or any(
                not 0 <= p < n for p, n in zip(place, self.shape.dims, strict=True)
            ):
                raise NotRead(f"{self.each.place}: only padding around an array is replayed")
            made[sum(map(operator.mul, place, stride))] = value
        return made


def _sum(column: Sequence, rank: int):
    """The sum of elements; zeros contribute nothing."""
    total = None
    for each in column:
        if isinstance(each, Wrong):
            return each
        if isinstance(each, Value):
            try:
                total = each if total is None else summed(total, each, rank)
            except NotProved as error:
                return Wrong(error)
        elif each:
            return Wrong(NotProved(f"rank {rank} adds the number {each} to data", rank))
    return 0.0 if total is None else total


def _number(element):
    if isinstance(element, Wrong):
        raise element.error
    if isinstance(element, Value):
        raise NotProved(f"data of chunk {element.chunk} are used as a number", None, element.chunk)
    return element


def _wrapped(element, kind: str):
    """A number wrapped to the range of its type; data are unchanged."""
    if isinstance(element, (Value, Wrong)):
        return element if kind in _FLOATS else _number(element)
    if kind == "pred":
        return bool(element)
    if kind[0] in "su" and kind[1:].isdigit():
        bits = int(kind[1:])
        low = int(element) % 2**bits
        return low - 2**bits if kind[0] == "s" and low >= 2 ** (bits - 1) else low
    return float(element)


def _strides(dims: Sequence[int]) -> list[int]:
    return [math.prod(dims[axis + 1 :]) for axis in range(len(dims))]


def _constant(each: Instruction, shape: Shape) -> Array:
    if "..." in each.inside:
        raise NotRead(f"{each.place} is left out of the text; dump it whole: "
                      "XLA_FLAGS='--xla_dump_to=DIR --xla_dump_large_constants'")  # fmt: skip

    found = re.findall(r"true|false|-?inf|nan|-?[0-9.]+(?:e[+-]?[0-9]+)?", each.inside)
    words = {"true": 1, "false": 0}
    exact = shape.kind not in _FLOATS
    made = [_wrapped(words[t] if t in words else (int(t) if exact else float(t)), shape.kind)
            for t in found]  # fmt: skip
    if len(made) != shape.size:
        raise NotRead(f"{each.place}: {len(made)} numbers for a shape of {shape.size}")
    return made
