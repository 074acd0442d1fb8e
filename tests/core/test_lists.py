"""Lists that a new file has to join: a synthesizer, a network, a format, a rule, a study left out.

Each list is held against the modules of its folder, so that a forgotten line fails here.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import experiments
import jaxcoll.io
import jaxcoll.synth
import tensorstate.rules
from experiments.config import EXPERIMENTS
from jaxcoll import topologies
from jaxcoll.execute import lowerings
from jaxcoll.execute.lowerings import pallas
from jaxcoll.execute.primitives import LOWERINGS
from jaxcoll.synth import REGISTRY, SYNTHESIZERS, Portfolio, Synthesizer
from jaxcoll.topologies import generative
from tests.synth.cases import CASES


def modules_of(package: ModuleType, deep: bool = True) -> Iterator[ModuleType]:
    """The modules of a package, those of its folders too unless ``deep`` is false."""
    walk = pkgutil.walk_packages if deep else pkgutil.iter_modules
    for found in walk(package.__path__, f"{package.__name__}."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def defined_in(module: ModuleType, kind) -> Iterator[tuple[str, Any]]:
    """The public definitions of a module that are its own."""
    for name, value in vars(module).items():
        own = getattr(value, "__module__", None) == module.__name__
        if kind(value) and own and not name.startswith("_"):
            yield name, value


def synthesizers_in(package: ModuleType) -> set[type]:
    """The synthesizers that the modules of a package define and that can be made."""
    found = set()
    for module in modules_of(package):
        for _, value in defined_in(module, inspect.isclass):
            if issubclass(value, Synthesizer) and not inspect.isabstract(value):
                found.add(value)
    return found


def test_every_synthesizer_is_in_the_registry():
    assert synthesizers_in(jaxcoll.synth) == {*REGISTRY.values(), Portfolio}
    assert all(kind.name == name for name, kind in SYNTHESIZERS.items())


def test_every_synthesizer_is_exported():
    exported = [getattr(jaxcoll.synth, name) for name in jaxcoll.synth.__all__]
    assert [kind for kind in SYNTHESIZERS.values() if kind not in exported] == []


def test_every_synthesizer_has_a_case_in_the_battery():
    assert {type(case.synthesizer) for case in CASES} == set(SYNTHESIZERS.values())


# Made by another name: as a torus or a mesh, and by ``distance_regular`` as rows of Table A.2;
# ``checked`` makes none.
NOT_BY_NAME = {"grids.grid", "distance_regular_graphs.*", "finite_geometry.*", "*.checked"}


@pytest.mark.parametrize("package", [topologies, generative], ids=("networks", "generative"))
def test_every_network_is_exported(package):
    for module in modules_of(package, deep=False):
        own = module.__name__.rpartition(".")[2]
        for name, function in defined_in(module, inspect.isfunction):
            kind = getattr(function, "__annotations__", {}).get("return")
            if (
                kind in ("Topology", "Digraph")
                and not {f"{own}.{name}", f"{own}.*", f"*.{name}"} & NOT_BY_NAME
            ):
                assert name in package.__all__, f"{module.__name__}.{name} is not exported"


def test_every_format_is_exported():
    """Those of NCCL under ``jc.tune.nccl``."""
    formats = [m for m in modules_of(jaxcoll.io) if hasattr(m, "dumps") and hasattr(m, "loads")]
    formats = [m for m in formats if not m.__name__.startswith("jaxcoll.io.nccl")]
    assert len(formats) >= 3
    exported = [jaxcoll.io, *(getattr(jaxcoll.io, name) for name in jaxcoll.io.__all__)]
    readers = {getattr(each, "loads", None) for each in exported}
    assert {module.__name__ for module in formats if module.loads not in readers} == set()


def test_every_sharding_rule_is_known():
    families = [m for m in modules_of(tensorstate.rules) if hasattr(m, "RULES")]
    assert len(families) >= 4
    for module in families:
        assert module.RULES.items() <= tensorstate.rules.RULES.items()


def test_every_lowering_has_a_name():
    runs = {m.run for m in modules_of(lowerings) if hasattr(m, "run")}
    # That of Pallas is loaded where it runs.
    assert runs - {pallas.run} == set(LOWERINGS.values()) - {LOWERINGS["pallas"]}


def test_every_study_is_listed():
    """Modules of one study are read; those of several, whose functions are named, are asked."""
    root, studies = Path(experiments.__path__[0]), set()
    for path in root.rglob("*.py"):
        module = ".".join(path.relative_to(root.parent).with_suffix("").parts)
        for made in ast.parse(path.read_bytes()).body:
            if isinstance(made, ast.FunctionDef) and made.name == "run":
                studies |= {module} if [a.arg for a in made.args.args][:1] == ["config"] else set()
    listed = {f"experiments.{study.function}" for study in EXPERIMENTS.values()}
    assert len(studies) > 10
    assert studies == {function for function in listed if ":" not in function}
    assert all(callable(study.load()) for study in EXPERIMENTS.values())
