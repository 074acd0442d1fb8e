"""Baselines: named parallelism strategies, as restrictions of the strategies of node classes.

A baseline fixes some placements and leaves the others to the search, which finds the best plan of
the baseline. So a search without restrictions is never worse than a baseline.

- ``ddp``: parameters and optimizer state replicated, the batch sharded.
- ``zero1``, ``zero2``: optimizer state sharded. The two are the same if a step has one backward
  pass, since gradients are then reduced directly to the optimizer's shards (Rajbhandari et al.,
  2020).
- ``fsdp`` (ZeRO-3): parameters sharded, too; gathered copies are not saved.

  A layer's parameters are gathered separately, even if a scan stacks those of all layers. Under
  mixed precision a shard is cast before it is gathered, and a gradient is reduced before it is cast
  back. Both are sent in the dtype in which the model computes, as in PyTorch's FSDP2 with
  ``param_dtype=bfloat16`` and its default ``reduce_dtype``. ``ddp``, ``zero1`` and ``zero2`` also
  reduce gradients in that dtype; gathers after the optimizer have the dtype of parameters.

  Parameters that the step does not update, such as LoRA's base model, are sharded or replicated
  like the others; they have no gradients to reduce.
- ``megatron``: weights sharded, but not the batch and the residual stream (Shoeybi et al., 2019).
- ``megatron-sp``: as ``megatron``; elementwise operators may also be sharded along the sequence
  (Korthikanti et al., 2022).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from jaxcoll.numerics import checks
from tensorstate.errors import PlanError
from tensorstate.ir.graph import Graph, Role, Tensor
from tensorstate.ir.placements import REPLICATED, RingStrategy
from tensorstate.problem.node_strategies import Strategy
from tensorstate.problem.problem import Problem
from tensorstate.tracing.roles import DRAWING

DATA = ("ddp", "zero1", "zero2", "fsdp")
MODEL = ("megatron", "megatron-sp")
BASELINES = (*DATA, *MODEL)
# Primitives that cast, cut or stack.
_CUTS = frozenset({"convert_element_type", "slice", "dynamic_slice", "scan_row"})
COPIES = _CUTS | {"concatenate", "scan_stack"}


class Baselines:
    """The restrictions of a problem's strategies to baselines.

    Args:
        problem: a training step on a mesh.
    """

    def __init__(self, problem: Problem):
        self.problem, self.graph = problem, problem.graph

    # ------------------------------------------------------------------ factors

    @functools.cached_property
    def batch(self) -> frozenset[int]:
        """Factors of the first position of the batch's tensors.

        Inputs that the step updates, as a queue of keys, are counted only if no other input has
        examples. Factors that ring attention shards are left out: for a batch of one example, the
        first factor is the sequence. So are those of parameters, if any other is left: the members
        of an ensemble are not examples, even if each counts its steps. Examples that the step
        draws are added.
        """
        updated = {
            self.graph.inputs[o.updates] for o in self.graph.outputs if o.updates is not None
        }
        given = frozenset(
            tensor.dims[0]
            for tensor in self._inputs()
            if tensor.dims and tensor.index not in updated
        )
        if given.isdisjoint(self._of_products):
            given = frozenset(tensor.dims[0] for tensor in self._inputs() if tensor.dims)
        given -= self._ring_places
        given = given - self.of_parameters or given
        return given | self._drawn(given)

    def _drawn(self, batch: frozenset[int]) -> frozenset[int]:
        """The first factors of examples that the step draws: from a buffer, or as noise.

        Parameters multiply them, and they have no factor of the batch.
        """
        graph, drawn, found = self.graph, set[int](), set[int]()
        others = batch | self.of_parameters
        for operator in graph.operators:
            operands = [use.tensor for use in operator.operands]
            if operator.primitive in DRAWING or not drawn.isdisjoint(operands):
                drawn.update(use.tensor for use in operator.results)
            if operator.kind not in ("einsum", "window") or operator.phase != "forward":
                continue
            if any(is_parameter(graph, tensor) for tensor in operands):
                rows = (graph.tensors[tensor].dims for tensor in operands if tensor in drawn)
                found |= {dims[0] for dims in rows if dims and batch.isdisjoint(dims)} - others
        return frozenset(found)

    @functools.cached_property
    def _of_products(self) -> frozenset[int]:
        """Factors of the results of the forward pass's products."""
        return frozenset(
            factor
            for operator in self.graph.operators
            if operator.kind in ("einsum", "window") and operator.phase == "forward"
            for use in operator.results
            for factor in self.graph.tensors[use.tensor].dims
        )

    @functools.cached_property
    def of_parameters(self) -> frozenset[int]:
        """Factors of the parameters as they are given."""
        # A weight that is repeated for every example has the batch, but its parameter does not.
        tensors = (self.graph.tensors[i] for i in self.graph.inputs)
        return frozenset(f for t in tensors if t.role == "parameter" for f in t.dims)

    @functools.cached_property
    def sequence(self) -> frozenset[int]:
        """Factors of the second position of the batch's matrices, such as tokens.

        They include the factors of an attention's places: of queries and keys that ring attention
        shards, or of scores, which have one factor twice. They do not include features, which
        weights have, too: for an input [examples, features] a product with weights sums over them.
        """
        matrices = (tensor.dims for tensor in self._inputs() if len(tensor.dims) == 2)
        factors = {dims[1] for dims in matrices} | self._ring_places
        for operator in self.graph.operators:
            is_product = operator.phase == "forward" and operator.kind == "einsum"
            if is_product and not any(
                is_parameter(self.graph, u.tensor) for u in operator.operands
            ):
                dims = self.graph.tensors[operator.results[0].tensor].dims
                factors |= {factor for factor in dims if dims.count(factor) > 1}
        return frozenset(factors) - self.batch - self._of_weights

    @functools.cached_property
    def _of_weights(self) -> frozenset[int]:
        """Factors of the parameters that products of the forward pass read."""
        graph = self.graph
        return frozenset(
            factor
            for operator in graph.operators
            if operator.kind in ("einsum", "window") and operator.phase == "forward"
            for use in operator.operands
            if is_parameter(graph, use.tensor)
            for factor in graph.tensors[use.tensor].dims
        )

    @functools.cached_property
    def _ring_places(self) -> frozenset[int]:
        """Factors of the queries that ring attention shards."""
        queries = [
            (o.operands[0], o.pairing.queries)
            for o in self.graph.operators
            if isinstance(o.pairing, RingStrategy)
        ]
        return frozenset(
            self.graph.tensors[use.tensor].dims[use.labels.index(label)] for use, label in queries
        )

    def _inputs(self) -> list[Tensor]:
        tensors = (self.graph.tensors[i] for i in self.graph.inputs)
        return [tensor for tensor in tensors if tensor.role == "input"]

    @functools.cached_property
    def residual_stream_factors(self) -> frozenset[int]:
        """Factors of the rows that are gathered from parameters, such as an embedding's width."""
        factors: set[int] = set()
        for operator in self.graph.operators:
            if operator.kind == "gather" and operator.phase == "forward":
                table = operator.operands[0]
                if is_parameter(self.graph, table.tensor):
                    dims = self.graph.tensors[table.tensor].dims
                    factors |= {
                        factor
                        for factor, label in zip(dims, table.labels, strict=True)
                        if label not in operator.reductions
                        and label not in operator.need_replication
                    }
        return frozenset(factors)

    @functools.cached_property
    def label_factors(self) -> tuple[tuple[int | None, ...], ...]:
        """The factor of every label of every class."""
        by_class: list[tuple[int | None, ...]] = []
        for class_id in range(len(self.graph.node_classes)):
            node = self.problem.node(class_id)
            if node.tensor is not None:
                by_class.append(self.graph.tensors[node.tensor].dims)
                continue
            factor_of: list[int | None] = [None] * len(node.sizes)
            for member in node.members:
                operator = self.graph.operators[member.operator]
                for use in (*operator.operands, *operator.results):
                    dims = self.graph.tensors[use.tensor].dims
                    for factor, label in zip(dims, use.labels, strict=True):
                        factor_of[member.labels[label]] = factor
            pairing = self.problem.strategies[class_id].pairing
            if pairing is not None:
                # Queries of a ring; of an exchange the experts, whose devices compute.
                of_work = pairing.queries if isinstance(pairing, RingStrategy) else pairing.owners
                factor_of[pairing.label] = factor_of[of_work]
            by_class.append(tuple(factor_of))
        return tuple(by_class)

    @functools.cached_property
    def copies(self) -> Mapping[int, Role]:
        """The classes that only cast, cut or stack: those of parameters, and those of gradients.

        A scan over layers cuts its stacked parameters, and stacks their gradients.
        """
        # Backwards from the results, since the result of casting or cutting a gradient is a
        # gradient, too. FSDP shards both: casts before they are gathered, and gradients once they
        # are reduced.
        graph, gradients = self.graph, set[int]()
        for operator in reversed(graph.operators):
            results = {use.tensor for use in operator.results}
            is_read = all(t in gradients or graph.tensors[t].role == "gradient" for t in results)
            if operator.primitive in COPIES and is_read:
                gradients.update(results, (use.tensor for use in operator.operands))
        found: dict[int, Role] = {}
        for class_id in range(len(graph.node_classes)):
            members = self.problem.node(class_id).members
            operators = [graph.operators[member.operator] for member in members]
            if not operators or any(o.primitive not in COPIES for o in operators):
                continue
            result = operators[-1].results[0].tensor
            if is_parameter(graph, result):
                found[class_id] = "parameter"
            elif result in gradients:
                found[class_id] = "gradient"
        return found

    # ------------------------------------------------------------------ baselines

    def strategies(self, names: Mapping[str, str]) -> tuple[tuple[Strategy, ...], ...]:
        """For every class the strategies that the baseline of each axis allows.

        Args:
            names: a baseline for every axis of the mesh, by the axis's name.
        """
        chosen = [names[axis] for axis in self.problem.mesh.names]
        by_class = []
        for class_id, strategies in enumerate(self.problem.strategies):
            # On the axis of pipeline stages, scans have the placements that stages need, in any
            # baseline.
            staged = None if strategies.fixed is None else strategies.fixed[0]
            candidates = [
                strategy
                for strategy in strategies.all
                if all(
                    axis == staged or self._allows_placement(name, class_id, strategy[axis])
                    for axis, name in enumerate(chosen)
                )
            ]
            # Classes that the baseline shards must be sharded if their sizes divide evenly.
            for axis, name in enumerate(chosen):
                sharded = [
                    strategy
                    for strategy in candidates
                    if self._is_sharded(name, class_id, strategy[axis])
                ]
                candidates = sharded or candidates
            by_class.append(tuple(candidates))
        return tuple(by_class)

    def among(
        self, name: str, candidates: Sequence[Sequence[Strategy]]
    ) -> list[list[Strategy]] | None:
        """The candidates that a named strategy allows; ``None`` if a class has none.

        Args:
            name: in the form of ``baseline_by_axis``.
            candidates: the strategies to choose from, by class.
        """
        allowed = self.strategies(baseline_by_axis(self.problem, name))
        both = [
            [strategy for strategy in choices if strategy in set(named)]
            for choices, named in zip(candidates, allowed, strict=True)
        ]
        return both if all(both) else None

    def _is_sharded(self, name: str, class_id: int, placement: int) -> bool:
        """Whether an input or an operator is sharded as the baseline requires."""
        node = self.problem.node(class_id)
        if node.tensor is None:
            if class_id in self.copies:
                return name == "fsdp" and placement >= 0
            if name == "megatron-sp" and node.kind == "loop":  # gathered rows are not stacked
                return placement >= 0
            if name in DATA and not self._is_optimizers(class_id):
                return placement >= 0 and self.label_factors[class_id][placement] in self.batch
            return False
        sharded = {
            "ddp": ("input",),
            "zero1": ("input", "optimizer"),
            "zero2": ("input", "optimizer"),
            "fsdp": ("input", "optimizer", "parameter"),
        }
        role = self.graph.tensors[node.tensor].role
        roles = sharded.get(name, ("parameter",) if len(node.sizes) > 1 else ())
        return placement >= 0 and role in roles

    def _is_optimizers(self, class_id: int) -> bool:
        """Whether operators are of the optimizer; a loop over whole steps has it in its body."""
        node, graph = self.problem.node(class_id), self.graph
        results = (use for m in node.members for use in graph.operators[m.operator].results)
        roles = {graph.tensors[use.tensor].role for use in results}
        return node.phase == "optimizer" or "optimizer" in roles

    def _allows_placement(self, name: str, class_id: int, placement: int) -> bool:
        """Whether a baseline allows a placement of a class on its axis."""
        node = self.problem.node(class_id)
        # ``_is_sharded`` defines the required placements of a class; these are other allowed ones.
        if placement == REPLICATED:
            return True
        factor = self.label_factors[class_id][placement] if placement >= 0 else None
        if node.tensor is not None:
            role = self.graph.tensors[node.tensor].role
            if role == "input":
                return name in DATA and factor in self.batch
            if role == "constant":
                return False
            if name in MODEL:
                return factor not in self.batch | self.residual_stream_factors | self.sequence
            replicated_roles = {"ddp": ("parameter", "optimizer"), "fsdp": ()}
            return role not in replicated_roles.get(name, ("parameter",))
        if self._is_optimizers(class_id):
            return name != "ddp"
        if placement < REPLICATED:  # by operators on partial sums, sums wait to be reduced
            return True
        if name in DATA:
            copied = self.copies.get(class_id)
            sharded = {"parameter": ("fsdp",), "gradient": ("fsdp", "zero1", "zero2")}
            return name in sharded.get(copied or "", ()) or factor in self.batch
        # Megatron shards heads and the hidden width of a layer, but neither the batch, nor the
        # width in which layers add up their results, nor the sequence.
        if factor in self.batch | self.residual_stream_factors:
            return False
        if factor in self.sequence:
            return name == "megatron-sp" and node.kind != "einsum"
        return True


def is_parameter(graph: Graph, tensor: int) -> bool:
    """Whether a tensor is a parameter, or one that is cast, pinned, or cut from a stack."""
    return parameter_of(graph, tensor) is not None


def parameter_of(graph: Graph, tensor: int) -> int | None:
    """The parameter that a tensor is, or from which it is cast, pinned or cut; else ``None``."""
    source = graph.tensors[tensor]
    while source.producer is not None:
        operator = graph.operators[source.producer]
        if operator.primitive not in _CUTS | {"scan_stack"} and operator.pin is None:
            return None
        source = graph.tensors[operator.operands[0].tensor]
    return source.index if source.role == "parameter" else None


def baseline_by_axis(problem: Problem, name: str) -> dict[str, str]:
    """The baseline of every mesh axis that a name stands for.

    A data-parallel baseline (``DATA``) applies to all axes. A tensor-parallel one (``MODEL``)
    applies to the last axis, with ``ddp`` on the others. ``"fsdp + megatron"`` joins one of each.

    Raises:
        PlanError: a name is unknown, or there are two data-parallel or two tensor-parallel
            baselines.
    """
    parts = [part.strip() for part in checks.text(name, "a baseline", PlanError).split("+")]
    unknown = [part for part in parts if part not in BASELINES]
    if unknown:
        known = ", ".join(BASELINES)
        raise PlanError(f"no baseline is called {checks.shown(unknown[0])}; known: {known}")
    data = [part for part in parts if part in DATA]
    model = [part for part in parts if part in MODEL]
    if len(data) > 1 or len(model) > 1:
        raise PlanError(
            f"{name!r} names two baselines of one kind: join one of {DATA} and one of {MODEL}"
        )
    axes = problem.mesh.names
    by_axis = dict.fromkeys(axes, data[0] if data else "ddp")
    if model:
        by_axis[axes[-1]] = model[0]
    return by_axis
