"""The public face: ``dir(jc)`` lists it, every name resolves, and every result's type is in it."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import jaxcoll as jc
from jaxcoll import io, simulation, topologies

ROOT = Path(__file__).parents[2]
FOLDERS = ("aot", "draw", "execute", "executors", "finder", "io", "optax", "pages", "tune")
# Of experts.
MODULES = (
    *("bounds", "calibration", "compact", "comparison", "contest", "errors"),
    *("expectation", "grid"),
    *("measured", "mesh", "orbits", "paths", "prove", "schedule", "simulation", "trees"),
    "validation",
)
MOVED = [(name, f"jaxcoll.{module}") for module, names in jc._MOVED.items() for name in names]


def test_dir_lists_public_names_only():
    assert set(dir(jc)) == {*jc.__all__, *FOLDERS, *MODULES, "__doc__", "__version__"}


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


@pytest.mark.parametrize("name", MODULES)
def test_modules_of_experts_are_reachable_after_the_import(name):
    module = getattr(jc, name)
    assert module is importlib.import_module(f"jaxcoll.{name}")
    assert inspect.getdoc(module)


def test_type_checkers_see_the_same_names():
    """The block for them is the table once more: every name from its module, as itself."""
    tree = ast.parse((ROOT / "jaxcoll/__init__.py").read_text(encoding="utf-8"))
    (block,) = [
        node.body
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    seen = {
        (line.module, alias.name, alias.asname)
        for line in block
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }
    names = {(f"jaxcoll.{module}", n, n) for module, names in jc._NAMES.items() for n in names}
    modules = {("jaxcoll", n, n) for n in {*FOLDERS, *MODULES, "synth", "topologies"} - {"optax"}}
    assert seen == names | modules | {("jaxcoll.training", "transforms", "optax")}
    assert len(seen) == sum(len(line.names) for line in block if isinstance(line, ast.ImportFrom))


def public_names() -> set[str]:
    """Those of the package, and of its modules for experts."""
    found = set(jc.__all__)
    for name in (*FOLDERS, *MODULES):
        module = getattr(jc, name)
        own = [key for key in vars(module) if not key.startswith("_")]
        found.update(getattr(module, "__all__", own))
    return found


@pytest.mark.parametrize("package", [jc, io, simulation, topologies], ids=lambda p: p.__name__)
def test_the_types_that_functions_return_are_public(package):
    public = {*package.__all__, *public_names()}
    for name in package.__all__:
        function = getattr(package, name)
        if not inspect.isfunction(function):
            continue
        returned = inspect.get_annotations(function).get("return")
        if not isinstance(returned, str) or not returned.isidentifier():
            continue
        kind = getattr(importlib.import_module(function.__module__), returned, None)
        if inspect.isclass(kind) and kind.__module__.startswith("jaxcoll."):
            assert returned in public, (name, returned)


# ---------------------------------------------------------------------- the pages of the API


def documented() -> set[str]:
    """The modules that the site has a page of, and that are public by that (docs/compatibility)."""
    tree = ast.parse((ROOT / "docs/generated_pages.py").read_text(encoding="utf-8"))
    (table,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MODULES"
    ]
    return set(table)


def test_every_module_of_the_public_face_has_a_page():
    modules = {f"jaxcoll.{name}" for name in {*FOLDERS, *MODULES, "synth", "topologies"}}
    assert modules - {"jaxcoll.optax"} <= documented()
    assert "jaxcoll.training.transforms" in documented()  # jc.optax


def test_the_code_of_pages_imports_public_modules_alone():
    public, private = documented(), {}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for code in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.ImportFrom) and node.module:
                    module = node.module
                    inner = module.startswith(("jaxcoll.", "tensorstate."))
                    if inner and module not in public:
                        private[page.name] = module
    assert private == {}


# ---------------------------------------------------------------------- names that have moved


@pytest.mark.parametrize(("name", "module"), MOVED)
def test_an_old_name_says_where_it_is(name, module):
    with pytest.warns(DeprecationWarning, match=f"write 'from {module} import {name}'") as caught:
        found = getattr(jc, name)
    assert found is getattr(importlib.import_module(module), name)
    assert [warning.filename for warning in caught] == [__file__]
    assert name not in dir(jc)


def test_old_names_are_gone_when_the_release_comes_that_drops_them():
    """A name that stays longer than its warning says is a promise that nobody can plan by."""
    name, _ = MOVED[0]
    with pytest.warns(DeprecationWarning, match="has it there alone") as caught:
        getattr(jc, name)
    (drops,) = re.findall(r"jaxcoll (\d+)\.(\d+) has it there alone", str(caught[0].message))
    assert tuple(map(int, jc.__version__.split(".")[:2])) < tuple(map(int, drops))


def test_the_import_of_an_old_name_is_blamed_on_who_imports():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(compile("from jaxcoll import Edges", "program.py", "exec"), {})
    assert {warning.filename for warning in caught} == {"program.py"}


def test_nothing_here_uses_an_old_name():
    names = "|".join(name for name, _ in MOVED)
    use = re.compile(
        rf"\b(?:jc|jaxcoll)\.(?:{names})\b|"
        rf"from jaxcoll import (?:\([^)]*|[^\n(]*)\b(?:{names})\b"
    )
    folders = ("jaxcoll", "tensorstate", "experiments", "tests", "docs", "configs", "scripts")
    kinds = {".py", ".md", ".ipynb", ".yaml", ""}
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    files += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    tried = [path for path in files if path.is_file() and path.suffix in kinds]
    assert len(tried) > 700
    here = Path(__file__)
    found = [
        (path.relative_to(ROOT).as_posix(), match[0])
        for path in tried
        if path != here
        for match in use.finditer(path.read_text(encoding="utf-8", errors="ignore"))
    ]
    assert found == []
    assert all(use.search(line) for line in ("jc.Edges", "from jaxcoll import psum, Edges"))


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
        "print(sorted(set(sys.modules) - before)); "
        "jaxcoll.psum; print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    heavy = ("jax", "numba", "scipy", "networkx", "highspy", "numpy")
    alone, with_synthesizers, with_execution = done.stdout.splitlines()
    assert not [name for name in heavy if f"'{name}'" in alone]
    # What synthesizers seldom use of SciPy takes as long to import as all of them. (SciPy 1.14
    # imports some of it with ``scipy.sparse``.)
    assert "'jaxcoll.synth'" in with_synthesizers
    seldom = ("scipy.optimize", "scipy.sparse.csgraph", "scipy.sparse.linalg", "scipy.linalg")
    assert not [name for name in seldom if f"'{name}'" in with_synthesizers]
    # What only ``probe`` uses takes 0.8 CPU s, two thirds of the import of JAX.
    assert "'jaxcoll.execute.links.probe'" in with_execution
    seldom = ("networkx", "scipy.cluster", "scipy.spatial")
    assert not [name for name in seldom if f"'{name}'" in with_execution]


def test_every_public_name_is_loaded_from_where_it_is():
    for name in jc.__all__:
        assert getattr(jc, name) is not None
    assert set(jc.__all__) <= set(dir(jc))
