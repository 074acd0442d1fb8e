"""From a flat program to tensors and operators: factors are found, views disappear.

First every equation unites the factors of the dimensions that it shows to be one, and reshapes
split them. Then every array is read as a view of a tensor, and every equation that is no view
becomes an operator whose labels are the parts of its dimensions.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, cast

from tensorstate.ir.graph import Call, Kind, Reduce, Source, Use, View
from tensorstate.rules import Rule, Signature
from tensorstate.tracing.flat_jaxpr import Atom, Constant, FlatEqn, FlatJaxpr, Variable
from tensorstate.tracing.propagate import FactorTable, relate


@dataclasses.dataclass(eq=False, slots=True)
class Value:
    """A tensor before it is known what it is for."""

    dims: tuple[int, ...]
    sizes: tuple[int, ...]
    dtype: Any
    producer: int | None
    result: int


@dataclasses.dataclass(eq=False, slots=True)
class Operation:
    """An operator before it is known when it runs. See ``graph.Operator``."""

    kind: Kind
    primitive: str
    sizes: tuple[int, ...]
    operands: tuple[Use, ...]
    results: tuple[Use, ...]
    reduced: dict[int, Reduce]
    linear: tuple[frozenset[int], ...]
    frozen: frozenset[int]
    flops: int
    source: Source
    call: Call


@dataclasses.dataclass(eq=False, slots=True)
class Body:
    """Tensors and operators of a program; its inputs and constants are the first tensors."""

    values: list[Value]
    operations: list[Operation]
    outputs: list[View]
    array_dims: list[tuple[tuple[int, ...], ...]]  # of the inputs and constants
    factors: tuple[int, ...]


def build(program: FlatJaxpr, unknown: str) -> Body:
    """The tensors and operators of a flat program.

    Args:
        unknown: "replicate" to run a primitive on whole arrays if it has no rule and none can be
            inferred; otherwise refuse it.

    Raises:
        PlanError: naming the primitive without a rule, and where in the model it stands.
    """
    dims = FactorTable()
    related = [relate(eqn, dims, unknown) for eqn in program.eqns]
    builder = _GraphBuilder(dims)
    for variable in (*program.inputs, *(variable for variable, _ in program.constants)):
        builder.make(variable, None, 0)
    array_dims = [builder.array_dims(v) for v in program.inputs]
    array_dims += [builder.array_dims(v) for v, _ in program.constants]
    for eqn, found in zip(program.eqns, related, strict=True):
        if found is None:
            builder.view_of(eqn)
        else:
            builder.operator(eqn, *found)
    outputs = [builder.view(atom) for atom in program.outputs]
    return Body(builder.values, builder.operations, outputs, array_dims, builder.factors())


# ---------------------------------------------------------------------- views and operators


class _GraphBuilder:
    """Reads arrays as views of tensors, once all factors are known."""

    def __init__(self, dims: FactorTable) -> None:
        self.dims = dims
        self.values: list[Value] = []
        self.operations: list[Operation] = []
        self._views: dict[Variable, View] = {}
        self._numbers: dict[int, int] = {}
        self._sizes_of: dict[tuple[int, ...], tuple[int, ...]] = {}

    def factors(self) -> tuple[int, ...]:
        """Sizes of the factors that tensors name."""
        return tuple(self.dims.factors.size(factor) for factor in self._numbers)

    def parts(self, atom: Atom) -> tuple[tuple[int, ...], ...]:
        """For every dimension the sizes of what it is the product of."""
        if isinstance(atom, Variable):
            return self._views[atom].sizes
        return tuple((size,) if size != 1 else () for size in atom.shape)

    def make(self, variable: Variable, producer: int | None, result: int) -> None:
        """A tensor with the positions of a variable's dimensions."""
        leaves = self.dims.leaves(variable)
        flat = tuple(itertools.chain.from_iterable(leaves))
        parts = tuple(map(self._sizes, leaves))
        tensor = len(self.values)
        self.values.append(
            Value(
                tuple(map(self._number, flat)),
                tuple(itertools.chain.from_iterable(parts)),
                variable.dtype,
                producer,
                result,
            )
        )
        grouped = _grouped(range(len(flat)), leaves)
        self._views[variable] = View(tensor, grouped, parts, variable.dtype)

    def _number(self, factor: int) -> int:
        return self._numbers.setdefault(factor, len(self._numbers))

    def _sizes(self, leaves: tuple[int, ...]) -> tuple[int, ...]:
        known = self._sizes_of.get(leaves)
        if known is None:
            size = self.dims.factors.size
            known = self._sizes_of[leaves] = tuple(map(size, leaves))
        return known

    def array_dims(self, variable: Variable) -> tuple[tuple[int, ...], ...]:
        return self._views[variable].positions  # pyright: ignore[reportReturnType]

    def view(self, atom: Atom) -> View:
        if isinstance(atom, Variable):
            return self._views[atom]
        sizes = self.parts(atom)
        positions = tuple((None,) * len(one) for one in sizes)
        return View(None, positions, sizes, atom.dtype, atom.value)

    def view_of(self, eqn: FlatEqn) -> None:
        """Read the result of a view as its argument's tensor is read."""
        source, out = eqn.inputs[0], eqn.outputs[0]
        view, name = self.view(source), eqn.primitive.name
        leaves = self.dims.leaves(out)
        sizes = tuple(map(self._sizes, leaves))
        if name == "transpose":
            positions = tuple(view.positions[d] for d in eqn.params["permutation"])
        elif name == "broadcast_in_dim":
            found: list[tuple[int | None, ...]] = [(None,) * len(one) for one in leaves]
            for d, at in enumerate(eqn.params["broadcast_dimensions"]):
                if source.shape[d] == out.shape[at]:
                    found[at] = view.positions[d]
            positions = tuple(found)
        else:
            flat = itertools.chain.from_iterable(view.positions)
            positions = _grouped(flat, leaves)
        self._views[out] = View(view.tensor, positions, sizes, view.dtype, view.value)

    def operator(self, eqn: FlatEqn, rule: Rule, signature: Signature) -> None:
        """Append an operator and the tensors that it makes."""
        index, first = len(self.operations), len(self.values)
        for k, out in enumerate(eqn.outputs):
            self.make(out, index, k)
        labels = _Labels(self, eqn, signature)
        inputs = tuple(
            labels.view(atom, names) if isinstance(atom, Constant) else self._views[atom]
            for atom, names in zip(eqn.inputs, labels.arguments, strict=True)
        )
        pairs = zip(inputs, labels.arguments, strict=True)
        operands = {k: _use(view, names) for k, (view, names) in enumerate(pairs) if _reads(view)}
        results = (
            Use(first + k, tuple(itertools.chain.from_iterable(names)))
            for k, names in enumerate(labels.results)
        )
        call = Call(
            eqn.primitive,
            eqn.params,
            inputs,
            tuple(self._views[out] for out in eqn.outputs),
            labels.arguments,
            labels.results,
            rule,
            eqn.region,
        )
        self.operations.append(
            Operation(
                signature.kind,
                eqn.primitive.name,
                tuple(labels.sizes),
                tuple(operands.values()),
                tuple(results),
                labels.reduced(),
                _linear(signature, eqn, list(operands)),
                frozenset(labels.frozen),
                signature.flops,
                eqn.source,
                call,
            )
        )


class _Labels:
    """The labels of an operator: one for each part of each label of its signature.

    A label whose dimensions were split in ways that do not fit is whole, and everywhere another.

    Attributes:
        sizes, frozen: of the operator's labels.
        arguments, results: for every array and dimension its labels, major first.
    """

    def __init__(self, builder: _GraphBuilder, eqn: FlatEqn, signature: Signature) -> None:
        self.sizes: list[int] = []
        self.frozen: set[int] = set()
        self._signature = signature
        self._of: dict[int, tuple[int, ...]] = {}
        arrays = [*zip(eqn.inputs, signature.arguments, strict=True)]
        arrays += zip(eqn.outputs, signature.results, strict=True)
        own = [builder.parts(atom) for atom, _ in arrays]
        self._parts: dict[int, tuple[int, ...] | None] = {}
        for (atom, names), parts in zip(arrays, own, strict=True):
            if isinstance(atom, Variable):
                for name, one in zip(names, parts, strict=True):
                    if name is not None and self._parts.setdefault(name, one) != one:
                        self._parts[name] = None
        found = [
            tuple(itertools.starmap(self._dimension, zip(names, parts, strict=True)))
            for (_, names), parts in zip(arrays, own, strict=True)
        ]
        self.arguments = tuple(found[: len(eqn.inputs)])
        self.results = tuple(found[len(eqn.inputs) :])

    def _dimension(self, name: int | None, own: tuple[int, ...]) -> tuple[int, ...]:
        """Labels of a dimension that is called ``name`` and has parts of its ``own``."""
        if not own:
            return ()
        parts = self._parts.get(name, own) if name is not None else own
        if name is None or parts is None:
            return self._new(own, frozen=True)
        if name not in self._of:
            self._of[name] = self._new(parts, frozen=name in self._signature.frozen)
        return self._of[name]

    def _new(self, sizes: Sequence[int], frozen: bool) -> tuple[int, ...]:
        labels = tuple(range(len(self.sizes), len(self.sizes) + len(sizes)))
        self.sizes.extend(sizes)
        if frozen:
            self.frozen.update(labels)
        return labels

    def reduced(self) -> dict[int, Reduce]:
        """How every label is reduced that is."""
        return {
            label: how
            for name, how in self._signature.reduced.items()
            for label in self._of.get(name, ())
        }

    def view(self, constant: Constant, labels: Sequence[Sequence[int]]) -> View:
        """A constant split as the dimensions that its own are."""
        sizes = tuple(tuple(self.sizes[label] for label in one) for one in labels)
        positions = tuple((None,) * len(one) for one in sizes)
        return View(None, positions, sizes, constant.dtype, constant.value)


def _reads(view: View) -> bool:
    return view.tensor is not None


def _use(view: View, labels: Sequence[Sequence[int]]) -> Use:
    """The label of every position of the tensor that a view reads."""
    at = {}
    for positions, names in zip(view.positions, labels, strict=True):
        at.update(zip(positions, names, strict=True))
    at.pop(None, None)
    return Use(cast(int, view.tensor), tuple(at[position] for position in range(len(at))))


def _linear(
    signature: Signature, eqn: FlatEqn, operands: Sequence[int]
) -> tuple[frozenset[int], ...]:
    """The sets of arguments, in numbers of operands, of which partial sums make sense.

    A sum with a constant is not linear, and of truth values and random keys there are no sums.
    """
    found = []
    for one in signature.linear:
        if any(getattr(eqn.inputs[k].dtype, "kind", "O") in "bO" for k in one):
            continue
        constants = [atom for k, atom in enumerate(eqn.inputs) if k in one and k not in operands]
        if all(isinstance(atom, Constant) and atom.value == 0 for atom in constants):
            found.append(frozenset(operands.index(k) for k in one if k in operands))
    return tuple(one for one in found if one)


def _grouped(
    flat: Iterable[int | None], like: Sequence[Sequence[int]]
) -> tuple[tuple[int | None, ...], ...]:
    """A flat sequence cut into the lengths of others."""
    items = iter(flat)
    return tuple(tuple(itertools.islice(items, len(one))) for one in like)
