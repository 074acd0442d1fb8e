"""Builds tensors and operators from a flat program: finds factors, and removes views.

First every equation unites the factors of dimensions that it shows to be the same axis, and
reshapes split factors. Then every array becomes a view of a tensor, and every equation that is not
a view becomes an operator whose labels are the unsplit factors of its dimensions.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar, cast

import numpy as np

from tensorstate.ir.graph import Loop, Operator, Reduce, Tensor, TracedEqn, Use, View
from tensorstate.ir.placements import Exchange, Pairing, PinnedDim
from tensorstate.rules import PrimitiveRule, ShardingRule
from tensorstate.tracing.flat import (
    FlatAtom,
    FlatEqn,
    FlatJaxpr,
    FlatLoop,
    FlatVar,
    SplatConstant,
)
from tensorstate.tracing.propagate import FactorTable, propagate

_Item = TypeVar("_Item")


# Suppose that a reshape shows the second dimension of an array [batch, 4 * 8] to be heads and their
# width. It then becomes a tensor with positions (batch, heads, width), and a product that reads it
# has two labels where the equation has one dimension. So its heads can be sharded, as in an array
# where heads are a dimension of their own.


class GraphParts(NamedTuple):
    """Tensors and operators of a program; its inputs and constants are the first tensors.

    Until ``trace_step`` fills them in, every operator has the phase "forward", and every tensor the
    role "activation" and no consumers.
    """

    tensors: list[Tensor]
    operators: list[Operator]
    outputs: list[View]
    factors: tuple[int, ...]
    loops: tuple[Loop, ...]


def build(program: FlatJaxpr, unknown: str) -> GraphParts:
    """The tensors and operators of a flat program.

    Args:
        unknown: as for ``propagate_factors``.

    Raises:
        PlanError: a primitive has no rule; the error names it and its line in the model.
    """
    dims, related = propagate(program, unknown)
    builder = _GraphBuilder(dims)
    for variable in (*program.inputs, *(variable for variable, _ in program.constants)):
        builder.add_tensor(variable, None, 0)
    for eqn, related_factors in zip(program.eqns, related, strict=True):
        if related_factors is None:
            builder.add_view(eqn)
        else:
            builder.operator(eqn, *related_factors)
    outputs = [builder.view(atom) for atom in program.outputs]
    loops = builder.finished_loops(program.loops)
    return GraphParts(builder.tensors, builder.operators, outputs, builder.factors(), loops)


# ---------------------------------------------------------------------- views and operators


class _GraphBuilder:
    """Reads arrays as views of tensors, once all factors are known."""

    def __init__(self, dims: FactorTable) -> None:
        self.dims = dims
        self.tensors: list[Tensor] = []
        self.operators: list[Operator] = []
        self._views: dict[FlatVar, View] = {}
        self._factor_ids: dict[int, int] = {}
        self._sizes_of: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._operator_of: dict[int, int] = {}
        self._forms: dict[Hashable, _Form] = {}

    def factors(self) -> tuple[int, ...]:
        """Sizes of the factors of tensors."""
        return tuple(self.dims.factors.size(factor) for factor in self._factor_ids)

    def factor_sizes(self, atom: FlatAtom) -> tuple[tuple[int, ...], ...]:
        """For every dimension, the sizes of the factors whose product it is."""
        if isinstance(atom, FlatVar):
            return self._views[atom].sizes
        return tuple((size,) if size != 1 else () for size in atom.shape)

    def add_tensor(self, variable: FlatVar, producer: int | None, result: int) -> None:
        """Add the tensor of a variable, with one position for each unsplit factor."""
        leaves = self.dims.leaves(variable)
        flat = tuple(itertools.chain.from_iterable(leaves))
        factor_sizes = tuple(map(self._sizes, leaves))
        tensor = len(self.tensors)
        grouped = _regroup(range(len(flat)), leaves)
        self.tensors.append(
            Tensor(
                tensor,
                # Numbered by first use, because united and split factors have left gaps.
                tuple(self._factor_ids.setdefault(f, len(self._factor_ids)) for f in flat),
                tuple(itertools.chain.from_iterable(factor_sizes)),
                variable.dtype,
                "activation",
                f"t{tensor}",
                producer,
                result,
                (),
                grouped if producer is None else None,
            )
        )
        self._views[variable] = View(tensor, grouped, factor_sizes, variable.dtype)

    def _sizes(self, leaves: tuple[int, ...]) -> tuple[int, ...]:
        known = self._sizes_of.get(leaves)
        if known is None:
            size = self.dims.factors.size
            known = self._sizes_of[leaves] = tuple(map(size, leaves))
        return known

    def view(self, atom: FlatAtom) -> View:
        if isinstance(atom, FlatVar):
            return self._views[atom]
        sizes = self.factor_sizes(atom)
        positions = tuple((None,) * len(dimension) for dimension in sizes)
        return View(None, positions, sizes, atom.dtype, atom.value)

    def add_view(self, eqn: FlatEqn) -> None:
        """Add the result of a view as a view of its argument's tensor."""
        source, out = eqn.inputs[0], eqn.outputs[0]
        view, name = self.view(source), eqn.primitive.name
        leaves = self.dims.leaves(out)
        sizes = tuple(map(self._sizes, leaves))
        if name == "transpose":
            positions = tuple(view.positions[d] for d in eqn.params["permutation"])
        elif name == "broadcast_in_dim":
            leaf_positions: list[tuple[int | None, ...]] = [
                (None,) * len(factors) for factors in leaves
            ]
            for d, at in enumerate(eqn.params["broadcast_dimensions"]):
                if source.shape[d] == out.shape[at]:
                    leaf_positions[at] = view.positions[d]
            positions = tuple(leaf_positions)
        else:
            flat = itertools.chain.from_iterable(view.positions)
            positions = _regroup(flat, leaves)
        self._views[out] = View(view.tensor, positions, sizes, view.dtype, view.value)

    def operator(self, eqn: FlatEqn, rule: PrimitiveRule, sharding: ShardingRule) -> None:
        """Append an operator and its results."""
        index, first = len(self.operators), len(self.tensors)
        self._operator_of[id(eqn)] = index
        for k, out in enumerate(eqn.outputs):
            self.add_tensor(out, index, k)
        form = self._form(eqn, sharding)
        inputs = tuple(
            form.constant(atom, names) if isinstance(atom, SplatConstant) else self._views[atom]
            for atom, names in zip(eqn.inputs, form.arguments, strict=True)
        )
        traced = TracedEqn(
            eqn.primitive,
            eqn.params,
            inputs,
            tuple(self._views[out] for out in eqn.outputs),
            form.arguments,
            form.results,
            rule,
            eqn.remat_region,
        )
        self.operators.append(
            Operator(
                index,
                sharding.kind,
                eqn.primitive.name,
                form.sizes,
                tuple(Use(cast(int, inputs[k].tensor), use) for k, use in form.operands),
                tuple(Use(first + k, use) for k, use in enumerate(form.produced)),
                form.reductions,
                form.linear,
                form.need_replication,
                sharding.flops,
                "forward",
                eqn.source,
                traced,
                # A pin, whose parameters are the sharding that the step asks for here.
                tuple(map(PinnedDim, form.results[0], eqn.params["spec"]))
                if eqn.primitive.name == "sharding_constraint"
                else None,
                eqn.loops,
                form.pairing,
                _reordered(eqn, [k for k, _ in form.operands]),
            )
        )

    def _form(self, eqn: FlatEqn, sharding: ShardingRule) -> _Form:
        """The form of an operator, computed once for all equal operators."""

        def read(atom: FlatAtom) -> Hashable:
            """The properties of an operand that the form depends on."""
            kind = getattr(atom.dtype, "kind", "O")
            if isinstance(atom, SplatConstant):
                return atom.shape, kind, bool(np.all(atom.value == 0))
            view = self._views[atom]
            value = None if view.tensor is not None else bool(np.all(view.value == 0))
            return view.positions, view.sizes, kind, value

        # When unrolled, 32 layers have each operator 32 times.
        key = (
            sharding.arguments,
            sharding.results,
            sharding.need_replication,
            sharding.linear,
            tuple(sharding.reductions.items()),
            tuple(sharding.unseen.items()),
            sharding.pairing,
            tuple(map(read, eqn.inputs)),
            tuple(self._views[out].sizes for out in eqn.outputs),
        )
        known = self._forms.get(key)
        if known is None:
            known = self._forms[key] = _Form.of(self, eqn, sharding)
        return known

    def finished_loops(self, loops: Sequence[FlatLoop]) -> tuple[Loop, ...]:
        """The loops, with numbers of operators.

        The two ends of a carry have the same labels. Labels that a body splits differently at its
        end than at its beginning are replicated.
        """
        finished = []
        for loop in loops:
            pairs = []
            for enter, leave in loop.carries:
                ends = self._operator_of[id(enter)], self._operator_of[id(leave)]
                # Both ends are nodes of one class, so they need one set of strategies: a label that
                # one end replicates is also replicated at the other.
                a, b = (self.operators[end] for end in ends)
                same = a.sizes == b.sizes and a.linear == b.linear
                for end, operator in zip(ends, (a, b), strict=True):
                    every = frozenset(range(len(operator.sizes)))
                    self.operators[end] = dataclasses.replace(
                        operator,
                        need_replication=a.need_replication | b.need_replication if same else every,
                        linear=operator.linear if same else (),
                    )
                pairs.append(ends)
            finished.append(
                Loop(loop.length, loop.reverse, tuple(pairs), loop.source, loop.mirrors)
            )
        return tuple(finished)


def _reordered(eqn: FlatEqn, read: Sequence[int]) -> tuple[int, ...]:
    """The numbers of a convolution's operands whose dimensions are in an unusual order."""
    order = eqn.params.get("dimension_numbers")
    if eqn.primitive.name != "conv_general_dilated" or order is None:
        return ()
    # XLA on CPU copies such an operand into the usual order before it convolves, and the copy
    # counts as memory.
    last = len(order.lhs_spec) - 1
    usual = (0, last, *range(1, last)), (last, last - 1, *range(last - 1))
    given = order.lhs_spec, order.rhs_spec
    return tuple(n for n, k in enumerate(read) if given[k] != usual[k])


class _Form(NamedTuple):
    """The properties that operators share if they differ only in their tensors, as in other layers.

    Attributes:
        sizes, reductions, linear, need_replication, pairing: as for ``Operator``.
        arguments, results: for every array and dimension its labels, major first.
        operands: the number of every argument that reads a tensor, and the label of every position.
        produced: for every result the label of every position.
    """

    sizes: tuple[int, ...]
    reductions: Mapping[int, Reduce]
    linear: tuple[frozenset[int], ...]
    need_replication: frozenset[int]
    arguments: tuple[tuple[tuple[int, ...], ...], ...]
    results: tuple[tuple[tuple[int, ...], ...], ...]
    operands: tuple[tuple[int, tuple[int, ...]], ...]
    produced: tuple[tuple[int, ...], ...]
    pairing: Pairing | None

    @classmethod
    def of(cls, builder: _GraphBuilder, eqn: FlatEqn, sharding: ShardingRule) -> _Form:
        """The form of an equation's operator."""
        labels = _Labels(builder, eqn, sharding)
        pairing = labels.pairing()
        operands = []
        for k, (atom, names) in enumerate(zip(eqn.inputs, labels.arguments, strict=True)):
            view = builder.view(atom)
            if view.tensor is None:
                continue
            # From dimensions to positions of the tensor; a repeated dimension has no position.
            at: dict[int | None, int] = {}
            for positions, of_dimension in zip(view.positions, names, strict=True):
                at.update(zip(positions, of_dimension, strict=True))
            at.pop(None, None)
            operands.append((k, tuple(at[position] for position in range(len(at)))))
        return cls(
            tuple(labels.sizes),
            labels.reductions(),
            _linear(sharding, eqn, [k for k, _ in operands]),
            frozenset(labels.need_replication),
            labels.arguments,
            labels.results,
            tuple(operands),
            tuple(tuple(itertools.chain.from_iterable(names)) for names in labels.results),
            pairing,
        )

    def constant(self, constant: SplatConstant, labels: Sequence[Sequence[int]]) -> View:
        """A view of a constant, with the factors of these labels."""
        sizes = tuple(tuple(self.sizes[label] for label in dimension) for dimension in labels)
        positions = tuple((None,) * len(dimension) for dimension in sizes)
        return View(None, positions, sizes, constant.dtype, constant.value)


class _Labels:
    """The labels of an operator: one for each unsplit factor of each label of its rule.

    A label whose dimensions have different splittings is replicated, and is not shared between
    arrays.

    Attributes:
        sizes, need_replication: those of the operator's labels.
        arguments, results: for every array and dimension its labels, major first.
    """

    def __init__(self, builder: _GraphBuilder, eqn: FlatEqn, sharding: ShardingRule) -> None:
        self.sizes: list[int] = []
        self.need_replication: set[int] = set()
        self._signature = sharding
        self._of: dict[int, tuple[int, ...]] = {}
        arrays = [*zip(eqn.inputs, sharding.arguments, strict=True)]
        arrays += zip(eqn.outputs, sharding.results, strict=True)
        array_factor_sizes = [builder.factor_sizes(atom) for atom, _ in arrays]
        for name, size in sharding.unseen.items():
            self._of[name] = self._new((size,), need_replication=False)
        # The rule says that two dimensions are one label, but a reshape has split 12 into (3, 4) in
        # one array and into (4, 3) in another, and no common splitting joins these. Then neither is
        # sharded here, since a device would have rows of one array that do not correspond to those
        # of the other.
        self._factor_sizes: dict[int, tuple[int, ...] | None] = {}
        for (atom, names), factor_sizes in zip(arrays, array_factor_sizes, strict=True):
            if isinstance(atom, FlatVar):
                for name, sizes in zip(names, factor_sizes, strict=True):
                    if name is not None and self._factor_sizes.setdefault(name, sizes) != sizes:
                        self._factor_sizes[name] = None
        slots = [
            tuple(itertools.starmap(self._dimension, zip(names, factor_sizes, strict=True)))
            for (_, names), factor_sizes in zip(arrays, array_factor_sizes, strict=True)
        ]
        self.arguments = tuple(slots[: len(eqn.inputs)])
        self.results = tuple(slots[len(eqn.inputs) :])

    def _dimension(self, name: int | None, array_factor_sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Labels of a dimension with label ``name`` in the rule and factors of these sizes."""
        if not array_factor_sizes:
            return ()
        factor_sizes = None if name is None else self._factor_sizes.get(name, array_factor_sizes)
        if name is None or factor_sizes is None:
            return self._new(array_factor_sizes, need_replication=True)
        if name not in self._of:
            self._of[name] = self._new(
                factor_sizes, need_replication=name in self._signature.need_replication
            )
        return self._of[name]

    def _new(self, sizes: Sequence[int], need_replication: bool) -> tuple[int, ...]:
        labels = tuple(range(len(self.sizes), len(self.sizes) + len(sizes)))
        self.sizes.extend(sizes)
        if need_replication:
            self.need_replication.update(labels)
        return labels

    def reductions(self) -> dict[int, Reduce]:
        """The reduction of every reduced label."""
        return {
            label: reduce_op
            for name, reduce_op in self._signature.reductions.items()
            for label in self._of.get(name, ())
        }

    def pairing(self) -> Pairing | None:
        """The pairing, whose labels are each one label here: otherwise its strategy is taken away.

        Of rows that are exchanged the first is enough: blocks of it are blocks of the rows.
        """
        pairing = self._signature.pairing
        if pairing is None:
            return None
        labels = [self._of.get(name, ()) for name in (pairing.label, *pairing.pair)]
        if isinstance(pairing, Exchange):
            labels[1] = labels[1][:1]
            labels[2] = labels[2][:1] if pairing.is_lookup else labels[2]
        if any(len(of_name) != 1 for of_name in labels):
            self.need_replication.update(labels[0])
            return None
        return pairing.relabelled(*itertools.chain.from_iterable(labels))


def _linear(
    sharding: ShardingRule, eqn: FlatEqn, operands: Sequence[int]
) -> tuple[frozenset[int], ...]:
    """The linear sets of an operator, with numbers of its operands.

    A sum with a constant other than 0 is not linear; Booleans and random keys cannot be summed.
    """
    # For partial sums, x + 1 would add 1 on every device; x + 0 and 2 * x may stay partial.
    linear = []
    for arguments in sharding.linear:
        if any(getattr(eqn.inputs[k].dtype, "kind", "O") in "bO" for k in arguments):
            continue
        constants = [eqn.inputs[k] for k in arguments if k not in operands]
        if all(isinstance(atom, SplatConstant) and atom.value == 0 for atom in constants):
            linear.append(frozenset(operands.index(k) for k in arguments if k in operands))
    return tuple(operand_set for operand_set in linear if operand_set)


def _regroup(flat: Iterable[_Item], like: Sequence[Sequence[int]]) -> tuple[tuple[_Item, ...], ...]:
    """A flat sequence, in groups of the same lengths as other groups."""
    items = iter(flat)
    return tuple(tuple(itertools.islice(items, len(group))) for group in like)
