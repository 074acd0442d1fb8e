"""The public face: ``dir(jc)`` lists it, every name resolves, and every result's type is in it."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import jaxcoll as jc
from jaxcoll import io, simulation, topologies

ROOT = Path(__file__).parents[2]
FOLDERS = ("aot", "draw", "execute", "executors", "finder", "io", "optax", "pages", "tune")


def test_dir_lists_public_names_only():
    assert set(dir(jc)) == {*jc.__all__, *FOLDERS, "__doc__", "__version__"}


@pytest.mark.parametrize("name", jc.__all__)
def test_every_name_resolves_and_is_documented(name):
    thing = getattr(jc, name)
    if callable(thing) or inspect.ismodule(thing):
        assert inspect.getdoc(thing)


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_are_reachable_after_the_import(name):
    folder = getattr(jc, name)
    assert inspect.getdoc(folder)
    for public in folder.__all__:
        assert hasattr(folder, public)


@pytest.mark.parametrize("package", [jc, io, simulation, topologies], ids=lambda p: p.__name__)
def test_the_types_that_functions_return_are_public(package):
    for name in package.__all__:
        function = getattr(package, name)
        if not inspect.isfunction(function):
            continue
        returned = inspect.get_annotations(function).get("return")
        if not isinstance(returned, str) or not returned.isidentifier():
            continue
        kind = getattr(importlib.import_module(function.__module__), returned, None)
        if inspect.isclass(kind) and kind.__module__.startswith("jaxcoll."):
            assert hasattr(package, returned) or returned in jc.__all__, (name, returned)


def test_what_is_private_is_not_found():
    with pytest.raises(AttributeError, match="no attribute 'blind'"):
        jc.blind  # noqa: B018


@pytest.mark.parametrize(
    ("name", "package"),
    [("optax", "optax"), ("draw", "matplotlib")],
)
def test_a_missing_package_is_named(name, package):
    """In a process of its own, where the package cannot be found."""
    program = f"""
import sys
sys.modules[{package!r}] = None
import jaxcoll
try:
    jaxcoll.{name}
except ImportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == f"jaxcoll.{name} needs the package {package}: pip install {package}\n"


def test_importing_it_loads_no_other_package():
    program = (
        "import sys; before = set(sys.modules); import jaxcoll; "
        "print(sorted({name.partition('.')[0] for name in set(sys.modules) - before})); "
        "import scipy.sparse; before = set(sys.modules); jaxcoll.synthesize; "
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    heavy = ("jax", "numba", "scipy", "networkx", "highspy", "numpy")
    alone, with_synthesizers = done.stdout.splitlines()
    assert not [name for name in heavy if f"'{name}'" in alone]
    # What synthesizers seldom use of SciPy takes as long to import as all of them. (SciPy 1.14
    # imports some of it with ``scipy.sparse``.)
    assert "'jaxcoll.synth'" in with_synthesizers
    seldom = ("scipy.optimize", "scipy.sparse.csgraph", "scipy.sparse.linalg", "scipy.linalg")
    assert not [name for name in seldom if f"'{name}'" in with_synthesizers]


def test_every_public_name_is_loaded_from_where_it_is():
    for name in jc.__all__:
        assert getattr(jc, name) is not None
    assert set(jc.__all__) <= set(dir(jc))
