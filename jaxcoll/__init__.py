"""jaxcoll: topology-aware collectives for JAX, from a network to a schedule to ``ppermute``.

- Networks: ``topologies``, ``Topology``; collectives: ``Collective``.
- Schedules: ``synthesize`` makes one, ``verify`` proves it, ``simulate`` times it, ``bound`` gives
  the least time of any; ``synthesize_compact`` writes one of tens of thousands of ranks to disk.
- Execution inside ``jax.shard_map``: ``psum``, ``all_gather`` and the others of ``jax.lax``.
- ``io`` (files), ``draw`` (figures), ``optax`` (training), ``aot`` (compiling for other machines),
  ``tune`` (choosing configurations by measured times).

Importing this package does not import jax; the functions that run schedules on devices do, when
they are first used.
"""

import importlib
import importlib.metadata
from typing import TYPE_CHECKING

from jaxcoll import synth, topologies
from jaxcoll.bounds import Bound, bound, cut_bound, ideal, lower_bounds, step_bound
from jaxcoll.bounds.throughput import Optimum, optimum
from jaxcoll.collective import Collective
from jaxcoll.compact import CompactSchedule
from jaxcoll.errors import (
    AssumptionWarning,
    CollectiveError,
    FormatError,
    JaxcollError,
    ScheduleError,
    TopologyError,
    TuneError,
)
from jaxcoll.grid import Grid, Placement
from jaxcoll.mesh.axes import axis_groups, axis_schedule, reorder
from jaxcoll.paths import Edges, shortest_routes
from jaxcoll.schedule import Provenance, Schedule, concatenate
from jaxcoll.simulation import (
    Framing,
    Message,
    MessageTimes,
    Timeline,
    simulate,
    simulate_messages,
    simulate_multicast,
    sum_orders,
)
from jaxcoll.simulation.execution_costs import ExecutionCosts, NativeCost
from jaxcoll.synth import SYNTHESIZERS, synthesize
from jaxcoll.synth.tacos.out_of_core import synthesize_compact
from jaxcoll.topology import Topology
from jaxcoll.trees import TreeFlow
from jaxcoll.verifier import verify

if TYPE_CHECKING:
    from jaxcoll.execute import (
        Explanation,
        all_gather,
        all_to_all,
        axis_index,
        axis_size,
        broadcast,
        compiler_options,
        explain_choice,
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
        use_topology,
    )
    from jaxcoll.training import transforms as optax  # noqa: F401
    from jaxcoll.tune.measured_costs import measure_execution

# Public folders that are loaded when first used: aot, execute and tune need jax, draw Matplotlib;
# the finder reads tables.
_FOLDERS = frozenset(("aot", "draw", "execute", "finder", "io", "tune"))

# Names of jaxcoll.execute, which needs jax.
_NEED_JAX = frozenset(
    (
        "Explanation",
        "all_gather",
        "all_to_all",
        "axis_index",
        "axis_size",
        "broadcast",
        "compiler_options",
        "explain_choice",
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
        "use_topology",
    )
)

__all__ = [
    "SYNTHESIZERS",
    "AssumptionWarning",
    "Bound",
    "Collective",
    "CollectiveError",
    "CompactSchedule",
    "Edges",
    "ExecutionCosts",
    "Explanation",
    "FormatError",
    "Framing",
    "Grid",
    "JaxcollError",
    "Message",
    "MessageTimes",
    "NativeCost",
    "Optimum",
    "Placement",
    "Provenance",
    "Schedule",
    "ScheduleError",
    "Timeline",
    "Topology",
    "TopologyError",
    "TreeFlow",
    "TuneError",
    "all_gather",
    "all_to_all",
    "axis_groups",
    "axis_index",
    "axis_schedule",
    "axis_size",
    "bound",
    "broadcast",
    "compiler_options",
    "concatenate",
    "cut_bound",
    "explain_choice",
    "gather",
    "ideal",
    "lower_bounds",
    "measure_execution",
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
    "simulate_multicast",
    "step_bound",
    "sum_orders",
    "synth",
    "synthesize",
    "synthesize_compact",
    "topologies",
    "use_topology",
    "verify",
]


# Packages that a name needs and the library does not, and the extras that install them.
_EXTRAS = {"draw": ("matplotlib", "draw"), "optax": ("optax", "training")}


def __getattr__(name: str):
    if name == "optax":  # left out of __all__: a star import must not need the package optax
        return _loaded(name, "jaxcoll.training.transforms")
    if name in _FOLDERS:
        return _loaded(name, f"jaxcoll.{name}")
    if name == "measure_execution":
        return importlib.import_module("jaxcoll.tune.measured_costs").measure_execution
    if name in _NEED_JAX:
        return getattr(importlib.import_module("jaxcoll.execute"), name)
    if name == "__version__":
        return importlib.metadata.version("jaxcoll")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _loaded(name: str, module: str):
    package, extra = _EXTRAS.get(name, ("", ""))
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not package or (error.name or "").partition(".")[0] != package:
            raise
        raise ModuleNotFoundError(
            f"jaxcoll.{name} needs the package {package}: pip install 'jaxcoll[{extra}]'",
            name=package,
        ) from error


def __dir__() -> list[str]:
    return sorted({*__all__, *_FOLDERS, "optax", "__doc__", "__version__"})
