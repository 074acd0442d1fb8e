"""tensorstate: chooses the placements of every tensor of a training step, and runs the plan.

``trace`` traces a step into a graph of operators; ``search`` chooses the placements of all tensors
on a device mesh, against the cost of collectives on the real network; the ``Plan`` is printed,
compared with baselines such as FSDP, checked against the compiled program, and run.

The folders, from the ground up: ``ir``, ``rules``, ``tracing``, ``problem``, ``cost``, ``solver``,
``execution``, ``export``, ``report``; then ``plan``, ``saved_plan``, ``step_search`` and
``mesh_search``.
"""

import logging

from tensorstate.collective_costs import AlphaBetaCosts, CollectiveCostModel, ScheduleCosts
from tensorstate.cost.cost import Cost, SearchOptions, SearchResult
from tensorstate.cost.memory import Memory
from tensorstate.cost.reshard_plan import Decisions, ReshardPlan
from tensorstate.errors import PlanError
from tensorstate.execution.placement_table import (
    Collectives,
    lax_collectives,
    scheduled_collectives,
)
from tensorstate.execution.sharded_step import ShardedStep
from tensorstate.export.axis_rules import AxisRules
from tensorstate.export.specs import PlanSpecs
from tensorstate.hardware import HARDWARE, Hardware
from tensorstate.ir.graph import Graph
from tensorstate.ir.placements import MeshShape
from tensorstate.mesh_search import search_mesh
from tensorstate.plan import Comparison, Plan, reprice, solve_baseline
from tensorstate.problem.baselines import BASELINES
from tensorstate.problem.mesh_assignments import MeshAssignment, mesh_assignments
from tensorstate.problem.problem import Problem
from tensorstate.report.hlo_check import HloComparison
from tensorstate.rules.declared import declare
from tensorstate.saved_plan import SavedPlan, load
from tensorstate.solver.auto import Auto
from tensorstate.solver.base import Solver
from tensorstate.solver.coordinate_descent import CoordinateDescent
from tensorstate.solver.exact import Milp
from tensorstate.step_search import search
from tensorstate.tracing.trace_step import trace

logging.getLogger(__name__).addHandler(logging.NullHandler())

__all__ = [
    "BASELINES",
    "HARDWARE",
    "AlphaBetaCosts",
    "Auto",
    "AxisRules",
    "CollectiveCostModel",
    "Collectives",
    "Comparison",
    "CoordinateDescent",
    "Cost",
    "Decisions",
    "Graph",
    "Hardware",
    "HloComparison",
    "Memory",
    "MeshAssignment",
    "MeshShape",
    "Milp",
    "Plan",
    "PlanError",
    "PlanSpecs",
    "Problem",
    "ReshardPlan",
    "SavedPlan",
    "ScheduleCosts",
    "SearchOptions",
    "SearchResult",
    "ShardedStep",
    "Solver",
    "declare",
    "lax_collectives",
    "load",
    "mesh_assignments",
    "reprice",
    "scheduled_collectives",
    "search",
    "search_mesh",
    "solve_baseline",
    "trace",
]


def __dir__() -> list[str]:
    return sorted([*__all__, "__doc__"])
