"""jaxcoll: topology-aware collectives for JAX, from a network to a schedule to ``ppermute``.

Importing this package does not import jax; the functions that run schedules on devices do, when
they are first used.
"""

import importlib
from typing import TYPE_CHECKING

from jaxcoll import synth, topologies
from jaxcoll.bounds import Bound, bound, bounds, cut_bound, ideal, step_bound
from jaxcoll.collective import Collective
from jaxcoll.errors import (
    CollectiveError,
    FormatError,
    JaxcollError,
    ScheduleError,
    TopologyError,
)
from jaxcoll.grid import Grid, Placement
from jaxcoll.meshes import axis_groups, axis_schedule, reorder
from jaxcoll.paths import Edges, shortest_routes
from jaxcoll.schedule import Provenance, Schedule, concatenate
from jaxcoll.simulate import Framing, Message, Timeline, simulate, simulate_messages
from jaxcoll.synth import SYNTHESIZERS, synthesize
from jaxcoll.throughput import Optimum, optimum
from jaxcoll.topology import Topology
from jaxcoll.trees import TreeFlow
from jaxcoll.verify import verify

if TYPE_CHECKING:
    from jaxcoll.execute import (
        all_gather,
        all_to_all,
        axis_index,
        axis_size,
        broadcast,
        compiler_options,
        gather,
        pbroadcast,
        pmax,
        pmean,
        pmin,
        ppermute,
        psum,
        psum_scatter,
        reduce,
        scatter,
    )
    from jaxcoll.execute import optax as optax

# Names of jaxcoll.execute, which needs jax.
_NEED_JAX = frozenset(
    (
        "all_gather",
        "all_to_all",
        "axis_index",
        "axis_size",
        "broadcast",
        "compiler_options",
        "gather",
        "pbroadcast",
        "pmax",
        "pmean",
        "pmin",
        "ppermute",
        "psum",
        "psum_scatter",
        "reduce",
        "scatter",
    )
)

__all__ = [
    "SYNTHESIZERS",
    "Bound",
    "Collective",
    "CollectiveError",
    "Edges",
    "FormatError",
    "Framing",
    "Grid",
    "JaxcollError",
    "Message",
    "Optimum",
    "Placement",
    "Provenance",
    "Schedule",
    "ScheduleError",
    "Timeline",
    "Topology",
    "TopologyError",
    "TreeFlow",
    "all_gather",
    "all_to_all",
    "axis_groups",
    "axis_index",
    "axis_schedule",
    "axis_size",
    "bound",
    "bounds",
    "broadcast",
    "compiler_options",
    "concatenate",
    "cut_bound",
    "gather",
    "ideal",
    "optimum",
    "pbroadcast",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "psum",
    "psum_scatter",
    "reduce",
    "reorder",
    "scatter",
    "shortest_routes",
    "simulate",
    "simulate_messages",
    "step_bound",
    "synth",
    "synthesize",
    "topologies",
    "verify",
]


def __getattr__(name: str):
    if name == "optax":  # left out of __all__: a star import must not need the package optax
        return importlib.import_module("jaxcoll.execute.optax")
    if name in _NEED_JAX:
        return getattr(importlib.import_module("jaxcoll.execute"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
