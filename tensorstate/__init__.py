"""tensorstate: chooses the state of every tensor of a training step, and runs the plan.

A step is traced to a graph of operators over factors; a search chooses in which state every tensor
is on a device mesh, against what collectives cost on the real network; the plan is printed,
compared with the strategies that have names, and applied.
"""

from tensorstate.errors import PlanError
from tensorstate.hardware import (
    HARDWARE,
    AlphaBetaCosts,
    CollectiveCostModel,
    Hardware,
    ScheduleCosts,
)
from tensorstate.ir.graph import Graph
from tensorstate.ir.placements import MeshShape
from tensorstate.mesh_search import search_mesh
from tensorstate.plan import Comparison, Plan, search, solve_baseline
from tensorstate.tracing.trace_step import trace

__all__ = [
    "HARDWARE",
    "AlphaBetaCosts",
    "CollectiveCostModel",
    "Comparison",
    "Graph",
    "Hardware",
    "MeshShape",
    "Plan",
    "PlanError",
    "ScheduleCosts",
    "search",
    "search_mesh",
    "solve_baseline",
    "trace",
]
