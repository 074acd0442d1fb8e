"""jaxcoll: topology-aware collectives for JAX, from a network to a schedule to ``ppermute``.

- Networks: ``topologies``, ``Topology``; collectives: ``Collective``.
- Schedules: ``synthesize`` makes one, ``verify`` proves it, ``simulate`` times it, ``bound`` gives
  the least time of any, ``compare`` times all synthesizers; ``synthesize_compact`` writes one of
  tens of thousands of ranks to disk. ``executors``: such work on several processes or machines.
- ``prove``: a second opinion on files, schedules and programs, which imports nothing of the rest.
- Execution inside ``jax.shard_map``: ``psum``, ``all_gather`` and the others of ``jax.lax``.
- ``io`` (files), ``draw`` (figures), ``pages`` (interactive HTML), ``optax`` (training), ``aot``
  (compiling for other machines), ``tune`` (choosing configurations by measured times).

Importing this package imports nothing but the standard library: every name is loaded when it is
first used. NumPy, SciPy, networkx and Numba come with the first network or schedule, jax with the
first function that runs schedules on devices.
"""

import importlib
import importlib.metadata
import importlib.util
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxcoll import (  # noqa: F401
        aot,
        draw,
        execute,
        executors,
        finder,
        io,
        pages,
        prove,
        synth,
        topologies,
        tune,
    )
    from jaxcoll.bounds import Bound, bound, cut_bound, ideal, lower_bounds, step_bound
    from jaxcoll.bounds.throughput import Optimum, optimum
    from jaxcoll.calibration import Calibration, calibrate
    from jaxcoll.collective import Collective
    from jaxcoll.compact import CompactSchedule
    from jaxcoll.comparison import Compared, compare
    from jaxcoll.errors import (
        AssumptionWarning,
        CollectiveError,
        FormatError,
        JaxcollError,
        ScheduleError,
        TopologyError,
        TuneError,
    )
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
    from jaxcoll.execute.choice.measured_costs import measure_execution
    from jaxcoll.grid import Grid, Placement
    from jaxcoll.links.capable_switches import InNetwork
    from jaxcoll.mesh import axis_groups, axis_schedule, reorder
    from jaxcoll.paths import Edges, shortest_routes
    from jaxcoll.schedule import Provenance, Schedule, concatenate
    from jaxcoll.simulation import (
        Framing,
        Message,
        MessageTimes,
        NetworkTree,
        Timeline,
        simulate,
        simulate_in_network,
        simulate_messages,
        simulate_multicast,
        sum_orders,
    )
    from jaxcoll.simulation.execution_costs import ExecutionCosts, NativeCost
    from jaxcoll.synth import SYNTHESIZERS, synthesize
    from jaxcoll.synth.tacos import synthesize_compact
    from jaxcoll.topology import Topology
    from jaxcoll.training import transforms as optax  # noqa: F401
    from jaxcoll.trees import TreeFlow
    from jaxcoll.verifier import verify

# Quiet unless the program says otherwise: logging.basicConfig(level="INFO") shows what was chosen.
logging.getLogger(__name__).addHandler(logging.NullHandler())

# Modules and folders that are meant to be used by their names.
_PUBLIC = frozenset(("aot", "draw", "execute", "executors", "finder", "io", "pages", "tune"))

# The public names by the module that has them.
_NAMES = {
    "bounds": ("Bound", "bound", "cut_bound", "ideal", "lower_bounds", "step_bound"),
    "bounds.throughput": ("Optimum", "optimum"),
    "calibration": ("Calibration", "calibrate"),
    "collective": ("Collective",),
    "compact": ("CompactSchedule",),
    "comparison": ("Compared", "compare"),
    "errors": (
        "AssumptionWarning",
        "CollectiveError",
        "FormatError",
        "JaxcollError",
        "ScheduleError",
        "TopologyError",
        "TuneError",
    ),
    "execute": (
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
    ),
    "grid": ("Grid", "Placement"),
    "links.capable_switches": ("InNetwork",),
    "mesh": ("axis_groups", "axis_schedule", "reorder"),
    "paths": ("Edges", "shortest_routes"),
    "schedule": ("Provenance", "Schedule", "concatenate"),
    "simulation": (
        "Framing",
        "Message",
        "MessageTimes",
        "NetworkTree",
        "Timeline",
        "simulate",
        "simulate_in_network",
        "simulate_messages",
        "simulate_multicast",
        "sum_orders",
    ),
    "simulation.execution_costs": ("ExecutionCosts", "NativeCost"),
    "synth": ("SYNTHESIZERS", "synthesize"),
    "synth.tacos": ("synthesize_compact",),
    "topology": ("Topology",),
    "trees": ("TreeFlow",),
    "execute.choice.measured_costs": ("measure_execution",),
    "verifier": ("verify",),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "SYNTHESIZERS",
    "AssumptionWarning",
    "Bound",
    "Calibration",
    "Collective",
    "CollectiveError",
    "CompactSchedule",
    "Compared",
    "Edges",
    "ExecutionCosts",
    "Explanation",
    "FormatError",
    "Framing",
    "Grid",
    "InNetwork",
    "JaxcollError",
    "Message",
    "MessageTimes",
    "NativeCost",
    "NetworkTree",
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
    "calibrate",
    "compare",
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
    "simulate_in_network",
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


# Packages that a name needs and the library does not. Errors name them and not the extras, for pip
# would look for "jaxcoll[draw]" in an index, which a checkout or a wheel has not come from.
_PACKAGES = {"draw": "matplotlib", "optax": "optax"}


def __getattr__(name: str):
    if name == "optax":  # left out of __all__: a star import must not need the package optax
        return _loaded(name, "jaxcoll.training.transforms")
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"jaxcoll.{_MODULE_OF[name]}"), name)
    if name == "__version__":
        return importlib.metadata.version("jaxcoll")
    # Modules and folders, when first used: aot, execute and tune need jax, draw Matplotlib.
    if not name.startswith("_") and importlib.util.find_spec(f"jaxcoll.{name}") is not None:
        return _loaded(name, f"jaxcoll.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _loaded(name: str, module: str):
    # Only the absence of that package is explained: any other import error is a fault of its own.
    package = _PACKAGES.get(name)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if package is None or (error.name or "").partition(".")[0] != package:
            raise
        raise ModuleNotFoundError(
            f"jaxcoll.{name} needs the package {package}: pip install {package}", name=package
        ) from error


def __dir__() -> list[str]:
    return sorted({*__all__, *_PUBLIC, "optax", "__doc__", "__version__"})
