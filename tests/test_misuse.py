"""Misuse is refused by name: no raw exception leaves a public function, whatever it is given."""

from __future__ import annotations

import inspect
import types

import pytest

import jaxcoll as jc
import tensorstate as ts
from jaxcoll import JaxcollError, aot, draw, executors, finder, io, pages, tune
from jaxcoll.links import capable_switches
from jaxcoll.tune import nccl
from tests import misuse
from tests.misuse_of import measuring, plans, programs, tuning

CASES = {
    name: case
    for part in (misuse, measuring, tuning, plans, programs)
    for name, case in part.CASES.items()
}  # fmt: skip
# Their own network is refused, so that no hostile value can have a folder made.
ALWAYS_REFUSED = {"synthesize_compact", *tuning.REFUSED, *plans.REFUSED, *programs.REFUSED}
MOST_CHARACTERS = 500

# Public names that are not in the list: results, which a caller reads and does not make;
# abstract classes; names whose misuse is tried under another one.
RESULTS = {
    # Those of jax.lax themselves, with its errors.
    "jaxcoll": {"axis_index", "axis_size", "ppermute"},
    "jaxcoll.bounds": {"Bound", "Cost", "Optimality", "Optimum"},
    "jaxcoll.calibration": {"Calibration"},
    "jaxcoll.comparison": {"Compared"},
    "jaxcoll.execute": {"Explanation", "Probe", "axis_index", "axis_size", "ppermute"},
    # Rows of a table, which checks them.
    "jaxcoll.measured": {"Curve", "Machine"},
    "jaxcoll.expectation": {"Expectation", "Expected"},
    "jaxcoll.validation": {"Errors", "Prediction"},
    "jaxcoll.schedule": {"Provenance"},
    "jaxcoll.simulation": {"Clock", "MessageTimes", "OrbitTimeline", "Timeline", "Together"},
    "jaxcoll.tune": {"BucketSizes", "Outcome", "Recording", "Report", "this_machine"},
    # What other modules check their own argument with.
    "jaxcoll.executors": {"checked"},
    "jaxcoll.finder": {
        "Candidate", "Choice", "Construction", "FixedCost", "Found", "FoundTopology", "Frontiers",
        "Has",
    },
    "jaxcoll.io.msccl": {"Block", "Instruction", "Program"},
    "jaxcoll.aot": {"Burst", "Instruction", "Module", "Summary", "Target"},
    "jaxcoll.optax": {"FeedbackState", "StepState", "ZeroState"},
    "jaxcoll.execute.wires": {"Wire"},
    "tensorstate": {
        "AxisRules", "CollectiveCostModel", "Collectives", "Comparison", "Cost", "Decisions",
        "Graph", "HloComparison", "Memory", "MeshAssignment", "MeshShape", "Plan", "PlanSpecs",
        "ReshardPlan", "SavedPlan", "SearchResult", "ShardedStep", "Solver", "lax_collectives",
    },
}  # fmt: skip
FACES = {
    "jaxcoll": (jc, ""),
    "jaxcoll.bounds": (jc.bounds, ""),
    "jaxcoll.calibration": (jc.calibration, ""),
    "jaxcoll.comparison": (jc.comparison, ""),
    "jaxcoll.execute": (jc.execute, ""),
    "jaxcoll.execute.wires": (jc.execute.wires, "wires."),
    "jaxcoll.grid": (jc.grid, ""),
    "jaxcoll.measured": (jc.measured, "measured."),
    "jaxcoll.expectation": (jc.expectation, ""),
    "jaxcoll.validation": (jc.validation, "validation."),
    "jaxcoll.links.capable_switches": (capable_switches, ""),
    "jaxcoll.mesh": (jc.mesh, ""),
    "jaxcoll.paths": (jc.paths, ""),
    "jaxcoll.schedule": (jc.schedule, ""),
    "jaxcoll.simulation": (jc.simulation, ""),
    "jaxcoll.trees": (jc.trees, ""),
    "jaxcoll.io": (io, "io."),
    "jaxcoll.io.msccl": (io.msccl, "io.msccl."),
    "jaxcoll.io.multitree": (io.multitree, "io.multitree."),
    "jaxcoll.draw": (draw, ""),
    "jaxcoll.pages": (pages, "pages."),
    "jaxcoll.tune": (tune, "tune."),
    "jaxcoll.tune.nccl": (nccl, "nccl."),
    "jaxcoll.executors": (executors, "executors."),
    "jaxcoll.finder": (finder, "finder."),
    "jaxcoll.aot": (aot, "aot."),
    "jaxcoll.optax": (jc.optax, "optax."),
    "tensorstate": (ts, "ts."),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_what_is_no_argument_is_refused_by_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # "x" is a path, and some calls write to it
    raw = []
    for label, call in misuse.calls(*CASES[name]):
        try:
            call()
        except JaxcollError as error:
            if label == "as meant" and name not in ALWAYS_REFUSED:
                raw.append(f"{label}: {error}")
            if len(str(error)) > MOST_CHARACTERS:
                raw.append(f"{label}: a message of {len(str(error))} characters")
        except OSError as error:
            if "nowhere" not in str(error) and not label.startswith(("path", "folder", "log")):
                raw.append(f"{label}: {type(error).__name__}: {error}")
        except Exception as error:
            raw.append(f"{label}: {type(error).__name__}: {error}")
    assert not raw


def _is_of(value: object, module: str) -> bool:
    """Whether a function is public and of a module itself."""
    return inspect.isfunction(value) and value.__module__ == module and value.__name__[0] != "_"


@pytest.mark.parametrize("face", FACES)
def test_every_public_function_is_in_the_list(face):
    """So that the next one is tried too."""
    module, prefix = FACES[face]
    missing = []
    own = [name for name, value in vars(module).items() if _is_of(value, face)]
    for name in getattr(module, "__all__", own):
        value = getattr(module, name)
        is_other = isinstance(value, types.ModuleType) or name in RESULTS.get(face, ())
        is_error = inspect.isclass(value) and issubclass(value, Exception)
        if callable(value) and not is_other and not is_error:
            names = {f"{prefix}{name}", name, f"{face.rpartition('.')[2]}.{name}"}
            if not names & CASES.keys():
                missing.append(name)
    assert missing == []
