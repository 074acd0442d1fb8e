"""jaxcoll: topology-aware collectives for JAX, from a network to a schedule to ``ppermute``.

- Networks: ``topologies``, ``Topology``; collectives: ``Collective``.
- Schedules: ``synthesize`` makes one, ``verify`` proves it, ``simulate`` times it, ``bound`` gives
  the least time of any, ``compare`` times all synthesizers; ``synthesize_orbit`` makes one of
  thousands of ranks by the sends of one, ``synthesize_compact`` writes one to disk. ``executors``:
  such work on several processes or machines.
- ``prove``: a second opinion on files, schedules and programs, which imports nothing of the rest.
- Execution inside ``jax.shard_map``: ``psum``, ``all_gather`` and the others of ``jax.lax``.
- ``io`` (files), ``draw`` (figures), ``pages`` (interactive HTML), ``optax`` (training), ``aot``
  (compiling for other machines), ``tune`` (choosing configurations by measured times).
- For experts the modules under it, such as ``bounds``, ``simulation``, ``paths`` and ``errors``.

Importing this package imports nothing but the standard library, and ``jax_internals`` if jax is
loaded already: every name is loaded when it is first used. NumPy, SciPy, networkx and Numba come
with the first network or schedule, jax with the first function that runs schedules on devices.
"""

import importlib
import importlib.metadata
import importlib.util
import logging
import sys
import warnings
from typing import TYPE_CHECKING, Any

if sys.modules.get("jax") is not None:
    importlib.import_module("jaxcoll.jax_internals")

# Quiet unless the program says otherwise: logging.basicConfig(level="INFO") shows what was chosen.
logging.getLogger(__name__).addHandler(logging.NullHandler())

# The public names, by the module that has them: this is the list, and the rest is made from it.
_NAMES = {
    "bounds": ("bound",),
    "calibration": ("calibrate",),
    "collective": ("Collective",),
    "comparison": ("compare",),
    "errors": ("JaxcollError",),
    "expectation": ("expect",),
    "execute": (
        "all_gather",
        "all_to_all",
        "axis_index",
        "axis_size",
        "broadcast",
        "compiler_options",
        "explain_choice",
        "gather",
        "invariant_sum",
        "pbroadcast",
        "pmax",
        "pmean",
        "pmin",
        "ppermute",
        "psum",
        "psum_scatter",
        "ragged_all_to_all",
        "reduce",
        "scatter",
        "use_topology",
    ),
    "execute.choice.measured_costs": ("measure_execution",),
    "execute.links.probe": ("probe",),
    "execute.links.trace": ("trace_links",),
    "mesh": ("axis_schedule", "reorder"),
    "schedule": ("Schedule",),
    "simulation": ("simulate",),
    "synth": ("synthesize",),
    "synth.orbits": ("synthesize_orbit",),
    "synth.tacos": ("synthesize_compact",),
    "topology": ("Topology",),
    "verifier": ("verify",),
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

# Modules and folders that are meant to be used by their names; the second row is for experts. A
# star import takes only two, which need neither jax nor Matplotlib.
_STARRED = ("synth", "topologies")
_MODULES = (
    *("aot", "draw", "execute", "executors", "finder", "io", "optax", "pages", "tune"),
    *("bounds", "calibration", "compact", "comparison", "contest", "errors", "expectation", "grid"),
    *("measured", "mesh", "orbits", "paths", "prove", "schedule", "simulation", "trees"),
    "validation",
)

# Names that were public here up to 0.2, by the module that has them. They go in 0.3.
_MOVED = {
    "bounds": ("Bound", "Optimum", "cut_bound", "ideal", "lower_bounds", "optimum", "step_bound"),
    "calibration": ("Calibration",),
    "compact": ("CompactSchedule",),
    "comparison": ("Compared",),
    "errors": (
        "AssumptionWarning",
        "CollectiveError",
        "FormatError",
        "ScheduleError",
        "TopologyError",
        "TuneError",
    ),
    "execute": ("Explanation",),
    "grid": ("Grid", "Placement"),
    "links.capable_switches": ("InNetwork",),
    "mesh": ("axis_groups",),
    "paths": ("Edges", "shortest_routes"),
    "schedule": ("Provenance", "concatenate"),
    "simulation": (
        "ExecutionCosts",
        "Framing",
        "Message",
        "MessageTimes",
        "NativeCost",
        "NetworkTree",
        "Timeline",
        "simulate_in_network",
        "simulate_messages",
        "simulate_multicast",
        "sum_orders",
    ),
    "synth": ("SYNTHESIZERS",),
    "trees": ("TreeFlow",),
}
_MOVED_TO = {name: module for module, names in _MOVED.items() for name in names}

__all__ = sorted([*_MODULE_OF, *_STARRED])  # pyright: ignore[reportUnsupportedDunderAll]

# Type checkers run no code and cannot read the table, so it stands here once more for them; a test
# compares. ``as`` makes a name one that users may import.
if TYPE_CHECKING:
    from jaxcoll import aot as aot
    from jaxcoll import bounds as bounds
    from jaxcoll import calibration as calibration
    from jaxcoll import compact as compact
    from jaxcoll import comparison as comparison
    from jaxcoll import contest as contest
    from jaxcoll import draw as draw
    from jaxcoll import errors as errors
    from jaxcoll import execute as execute
    from jaxcoll import executors as executors
    from jaxcoll import expectation as expectation
    from jaxcoll import finder as finder
    from jaxcoll import grid as grid
    from jaxcoll import io as io
    from jaxcoll import measured as measured
    from jaxcoll import mesh as mesh
    from jaxcoll import orbits as orbits
    from jaxcoll import pages as pages
    from jaxcoll import paths as paths
    from jaxcoll import prove as prove
    from jaxcoll import schedule as schedule
    from jaxcoll import simulation as simulation
    from jaxcoll import synth as synth
    from jaxcoll import topologies as topologies
    from jaxcoll import trees as trees
    from jaxcoll import tune as tune
    from jaxcoll import validation as validation
    from jaxcoll.bounds import bound as bound
    from jaxcoll.calibration import calibrate as calibrate
    from jaxcoll.collective import Collective as Collective
    from jaxcoll.comparison import compare as compare
    from jaxcoll.errors import JaxcollError as JaxcollError
    from jaxcoll.execute import all_gather as all_gather
    from jaxcoll.execute import all_to_all as all_to_all
    from jaxcoll.execute import axis_index as axis_index
    from jaxcoll.execute import axis_size as axis_size
    from jaxcoll.execute import broadcast as broadcast
    from jaxcoll.execute import compiler_options as compiler_options
    from jaxcoll.execute import explain_choice as explain_choice
    from jaxcoll.execute import gather as gather
    from jaxcoll.execute import invariant_sum as invariant_sum
    from jaxcoll.execute import pbroadcast as pbroadcast
    from jaxcoll.execute import pmax as pmax
    from jaxcoll.execute import pmean as pmean
    from jaxcoll.execute import pmin as pmin
    from jaxcoll.execute import ppermute as ppermute
    from jaxcoll.execute import psum as psum
    from jaxcoll.execute import psum_scatter as psum_scatter
    from jaxcoll.execute import ragged_all_to_all as ragged_all_to_all
    from jaxcoll.execute import reduce as reduce
    from jaxcoll.execute import scatter as scatter
    from jaxcoll.execute import use_topology as use_topology
    from jaxcoll.execute.choice.measured_costs import measure_execution as measure_execution
    from jaxcoll.execute.links.probe import probe as probe
    from jaxcoll.execute.links.trace import trace_links as trace_links
    from jaxcoll.expectation import expect as expect
    from jaxcoll.mesh import axis_schedule as axis_schedule
    from jaxcoll.mesh import reorder as reorder
    from jaxcoll.schedule import Schedule as Schedule
    from jaxcoll.simulation import simulate as simulate
    from jaxcoll.synth import synthesize as synthesize
    from jaxcoll.synth.orbits import synthesize_orbit as synthesize_orbit
    from jaxcoll.synth.tacos import synthesize_compact as synthesize_compact
    from jaxcoll.topology import Topology as Topology
    from jaxcoll.training import transforms as optax  # noqa: F401
    from jaxcoll.verifier import verify as verify


# Packages that a name needs and the library does not. Errors name the package and not the extra:
# pip would look for "jaxcoll[draw]" in an index, but a checkout or a wheel did not come from one.
_PACKAGES = {"draw": "matplotlib", "optax": "optax"}


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"jaxcoll.{_MODULE_OF[name]}"), name)
    if name == "optax":
        return _loaded(name, "jaxcoll.training.transforms")
    if name == "__version__":
        return importlib.metadata.version("jaxcoll")
    if name in _MOVED_TO:
        module = f"jaxcoll.{_MOVED_TO[name]}"
        warnings.warn(
            f"jaxcoll.{name} is {module}.{name}, and jaxcoll 0.3 has it there alone: write "
            f"'from {module} import {name}'",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(module), name)
    # Modules and folders load when they are first used: aot, execute and tune need jax, draw
    # Matplotlib.
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
    return sorted([*__all__, *_MODULES, "__doc__", "__version__"])
