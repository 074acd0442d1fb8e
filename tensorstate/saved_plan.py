"""Plans loaded from files, which other processes or machines may have saved, and their steps."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from jax.sharding import PartitionSpec

from jaxcoll.io.files import MAX_BYTES, load_text
from jaxcoll.numerics import checks
from tensorstate.changed_step import adapt
from tensorstate.collective_costs import CollectiveCostModel
from tensorstate.errors import PlanError
from tensorstate.export.plan_file import PlanFile
from tensorstate.export.plan_json import loads
from tensorstate.hardware import Hardware
from tensorstate.ir.graph import Graph
from tensorstate.ir.placements import MeshShape
from tensorstate.keeping import table
from tensorstate.plan import Plan
from tensorstate.problem.problem import Problem
from tensorstate.problem.untying import regrouped
from tensorstate.report import text as report
from tensorstate.tracing.trace_step import graph_of


@dataclasses.dataclass(frozen=True, eq=False)
class SavedPlan:
    """A plan without its step. ``saved.on(step, abstract_args)`` is the plan.

    Attributes:
        content: the content of the file.
    """

    content: PlanFile

    @property
    def mesh(self) -> MeshShape:
        """The device mesh."""
        return self.content.mesh

    @property
    def specs(self) -> Mapping[str, PartitionSpec]:
        """The sharding of every argument by its path (``params/layers/0/up/kernel``)."""
        leaves = self.content.inputs
        return {leaf.name: leaf.spec for leaf in leaves if leaf.spec is not None}

    def on(
        self,
        step: Callable[..., Any] | Graph,
        abstract_args: Sequence[Any] | None = None,
        *,
        network: CollectiveCostModel | None = None,
        hardware: Hardware | None = None,
        changed: Literal["search", "refuse"] = "search",
    ) -> Plan:
        """The plan that ``search`` returned for the step, or one for a step that has changed since.

        If the step has changed (one more metric or layer, a renamed argument, another batch),
        arguments and operators of the plan keep their shardings and strategies, and the others are
        searched. A warning names the first difference and how much was searched.

        Args:
            step, abstract_args: as for ``search``; a graph if the step was traced with options.
            network, hardware: those of the search, if they are classes or charges of your own,
                which a file does not hold; or others, by which the plan is then priced.
            changed: "refuse" raises an error if the step has changed.

        Raises:
            PlanError: the step is another one, with less than half of the plan's operators, or has
                changed at all with ``changed="refuse"`` (the text names the first difference); the
                step does not have the decisions of the file, or they contradict the file's
                shardings; the network is missing, or belongs to another mesh.
        """
        checks.choice(changed, ("search", "refuse"), "changed", PlanError)
        # A function without arguments is a step, too.
        if abstract_args is None and not isinstance(step, Graph):
            abstract_args = ()
        content = self.content
        # The step is traced as it was for the plan: loops, padding and context decide its
        # operators.
        traced = content.loop_form, content.pad_to
        graph = graph_of(step, abstract_args, *traced, context=content.context)
        graph = regrouped(graph, content.untied)
        network, hardware = self._priced_by(network, hardware)
        table.check_priced(dict.fromkeys(content.decisions.kept.values()), hardware)
        # Arguments are compared first: a step with others may not split into these microbatches.
        difference = content.leaf_difference(graph)
        if difference is None:
            problem = Problem(
                graph,
                network,
                hardware,
                content.microbatches,
                content.batch,
                content.stages,
                schedule=content.schedule,
            )
            difference = content.operator_difference(problem.graph)
        if difference is not None and changed == "refuse":
            raise PlanError(f"the plan was made for another step: {difference}; give it that step")
        if difference is not None:
            return _adapted(content, graph, network, hardware, difference)
        # A file may come from anywhere, so its decisions are checked like a person's.
        content.check_decisions(problem)
        return Plan(problem, content.result(problem), content.options)

    def _priced_by(
        self, network: CollectiveCostModel | None, hardware: Hardware | None
    ) -> tuple[CollectiveCostModel, Hardware]:
        """The network and the hardware that are given, or else those of the file."""
        content = self.content
        network = content.network if network is None else network
        hardware = content.hardware if hardware is None else hardware
        if network is None or hardware is None:
            raise PlanError(
                "the file does not hold the network and the hardware of the search, which were the "
                "user's own: give network= and hardware="
            )
        checks.instance(network, CollectiveCostModel, "network", PlanError)
        checks.instance(hardware, Hardware, "hardware", PlanError)
        if network.mesh != content.mesh:
            raise PlanError(
                f"the plan is for {content.mesh}, but the network prices {network.mesh}; give a "
                "network of the plan's mesh"
            )
        return network, hardware

    def __str__(self) -> str:
        content, predicted = self.content, self.content.predicted
        device = "devices" if content.hardware is None else content.hardware.name
        return (
            f"a plan of {len(content.operators)} operators and {len(content.inputs)} arguments on "
            f"{content.mesh.num_devices} x {device}, mesh {content.mesh.text}: "
            f"{report.seconds(content.found['objective'])} per step, "
            f"{report.size(predicted['memory'])} per device. saved.on(step, abstract_args) is it"
        )


def _adapted(
    content: PlanFile,
    graph: Graph,
    network: CollectiveCostModel,
    hardware: Hardware,
    difference: str,
) -> Plan:
    """The plan of a step that has changed; warns about the change."""
    adapted = adapt(content, graph, network, hardware, difference)
    warnings.warn(
        f"the step is not as it was planned: {difference}. Of its {len(graph.operators)} operators "
        f"{adapted.searched} were searched, the others are as planned",
        stacklevel=3,
    )
    return adapted.plan


def load(path: str | os.PathLike, *, max_bytes: int = MAX_BYTES) -> SavedPlan:
    """Read a plan that ``Plan.save`` has written.

    Args:
        max_bytes: larger files are refused unread.

    Raises:
        FormatError: the file holds no plan, or an impossible one; the text names the file.
        OSError: the file cannot be read.
    """
    return SavedPlan(load_text(path, loads, max_bytes))
