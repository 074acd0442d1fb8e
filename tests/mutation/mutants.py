"""Mutants: would the tests notice if a line were wrong?

Cosmic Ray proposes the faults (another operator, another comparison, a number off by one, a loop
that is never entered), this file draws some of them, one per place in the source, writes each into
a copy of the tree and runs the test files that should notice. A mutant that they let pass points at
a line nobody holds to anything.

    scripts/mutants                      the files of TARGETS, 30 mutants of each
    scripts/mutants --count 10 FILE ...  fewer, of some of them

Cosmic Ray's own runner changes the files of the tree it is called in, one mutant at a time, and
runs every variant of every operator; here its operators alone are used. mutmut is not, because it
wraps every function in one that picks the mutant at run time, which Numba cannot compile.

Left out are faults that nothing can notice: in annotations and decorators (a kernel without its
decorator is the same function, slower), ``is`` in place of ``==``, and ``strict=`` of a ``zip`` of
columns that are equally long.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import itertools
import math
import multiprocessing
import os
import queue
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numba.core.config
import pytest
from cosmic_ray import plugins  # pyright: ignore[reportMissingImports]
from cosmic_ray.ast import get_ast  # pyright: ignore[reportMissingImports]
from cosmic_ray.mutating import MutationVisitor  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).parents[2]
PACKAGES = ("jaxcoll", "tensorstate", "experiments", "tests")

# The test files that should notice a fault of each file, those that find most of them first.
TARGETS = {
    "jaxcoll/topology.py": (
        "tests/core/test_html_reprs.py",
        "tests/core/test_topology.py",
        "tests/core/test_topology_networkx.py",
        "tests/bounds/test_without.py",
        "tests/core/test_devices.py",
    ),
    "jaxcoll/collective.py": ("tests/core/test_collective.py",),
    "jaxcoll/schedule.py": ("tests/core/test_schedule.py", "tests/core/test_verifier.py"),
    "jaxcoll/verifier.py": ("tests/core/test_verifier.py", "tests/synth/tacos/test_out_of_core.py"),
    "jaxcoll/simulation/kernels.py": (
        "tests/simulation/test_schedules.py",
        "tests/simulation/test_messages.py",
    ),
    "jaxcoll/simulation/schedules.py": (
        "tests/simulation/test_schedules.py",
        "tests/simulation/test_sum_order.py",
        "tests/simulation/test_steady.py",
        "tests/simulation/test_framing.py",
    ),
    "jaxcoll/bounds/times.py": (
        "tests/bounds/test_times.py",
        "tests/bounds/test_flows_over_time.py",
        "tests/bounds/test_without.py",
    ),
    "jaxcoll/synth/building/base.py": (
        "tests/synth/test_placement.py",
        "tests/synth/test_extremes.py",
        "tests/synth/building",
    ),
    "jaxcoll/synth/building/derive.py": ("tests/synth/building", "tests/synth/test_placement.py"),
    "jaxcoll/execute/choice/__init__.py": (
        "tests/execute/meshes/test_choice.py",
        "tests/execute/test_misuse.py",
        "tests/execute/meshes/test_degraded.py",
        "tests/execute/test_functions.py",
        "tests/execute/test_cheapest.py",
        "tests/execute/test_direct_connect.py",
    ),
    "tensorstate/problem/liveness.py": (
        "tests/tensorstate/problem/test_liveness.py",
        "tests/tensorstate/cost/test_memory.py",
        "tests/tensorstate/problem",
    ),
    "tensorstate/cost/cost.py": ("tests/tensorstate/cost",),
    "tensorstate/cost/memory.py": (
        "tests/tensorstate/problem/test_liveness.py",
        "tests/tensorstate/cost/test_memory_terms.py",
        "tests/tensorstate/cost/test_cost.py",
        "tests/tensorstate/solver/test_formulation.py",
    ),
    "tensorstate/cost/timeline.py": ("tests/tensorstate/cost/test_timeline.py",),
    "tensorstate/hardware.py": ("tests/tensorstate/test_measuring.py",),
    "tensorstate/collective_costs.py": (
        "tests/tensorstate/test_hardware.py",
        "tests/tensorstate/test_measuring.py",
    ),
    "tensorstate/problem/reshard.py": ("tests/tensorstate/problem/test_reshard.py",),
    "tensorstate/solver/formulation.py": (
        "tests/tensorstate/solver/test_formulation.py",
        "tests/tensorstate/solver/test_exact.py",
    ),
    "tensorstate/solver/memory_constraints.py": (
        "tests/tensorstate/solver/test_formulation.py",
        "tests/tensorstate/solver/test_exact.py",
    ),
}

LIBRARIES = ("scipy.optimize", "networkx", "highspy", "hypothesis", "jax")

# Operators whose mutants mostly are the same program, and two that take arguments.
EQUIVALENT = ("_Is", "_IsNot", "/RemoveDecorator", "/VariableInserter", "/VariableReplacer")

Place = tuple[int, int]


def blind_spots(source: str) -> Iterator[tuple[Place, Place]]:
    """Where no test can notice a fault, as (start, end) places."""
    for node in ast.walk(ast.parse(source)):
        parts = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if isinstance(node, ast.keyword) and node.arg == "strict":
            parts.append(node.value)
        for part in (*parts, *getattr(node, "decorator_list", ())):
            if isinstance(part, ast.expr):
                end = (part.end_lineno or part.lineno, part.end_col_offset or 0)
                yield (part.lineno, part.col_offset), end


def draw(source: str, count: int, seed: int) -> list[tuple[Place, str, str]]:
    """Up to ``count`` mutants of a source, as (place, operator, source), one per place."""
    blind = list(blind_spots(source))
    found: dict[Place, list[tuple[str, int]]] = {}
    tree = get_ast(source)
    for name in sorted(plugins.operator_names()):
        if name.endswith(EQUIVALENT):
            continue
        operator, occurrence = plugins.get_operator(name)(), 0
        for node in _nodes(tree):
            for start, _ in operator.mutation_positions(node):
                if not any(low <= start < high for low, high in blind):
                    found.setdefault(start, []).append((name, occurrence))
                occurrence += 1
    random_source = random.Random(seed)
    places = random_source.sample(sorted(found), min(count, len(found)))
    mutants = []
    for place in sorted(places):
        name, occurrence = random_source.choice(found[place])
        mutated = MutationVisitor.mutate_code(source, plugins.get_operator(name)(), occurrence)
        mutants.append((place, name.removeprefix("core/"), mutated))
    return mutants


def _nodes(node) -> Iterator:
    """Nodes in the order in which Cosmic Ray counts occurrences."""
    yield node
    for child in getattr(node, "children", ()):
        yield from _nodes(child)


class Quickest:
    """A pytest plugin: tests in the order of their seconds in an earlier run, up to a limit."""

    def __init__(self, seconds: Mapping[str, float] | None, limit: float):
        self.earlier, self.limit = seconds, limit
        self.seconds: dict[str, float] = {}

    def pytest_collection_modifyitems(self, items: list) -> None:
        if (earlier := self.earlier) is None:
            return
        items.sort(key=lambda item: earlier.get(item.nodeid, 0.0))
        spent = itertools.accumulate(earlier.get(item.nodeid, 0.0) for item in items)
        del items[sum(total <= self.limit for total in spent) :]

    def pytest_runtest_logreport(self, report) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration


def _run_tests(tree: Path, tests: Sequence[str], earlier, limit: float, caches: str, results):
    """In a process of its own, forked where all libraries but this project's are imported."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.chdir(tree)
    for name in [n for n in sys.modules if n.partition(".")[0] in PACKAGES]:
        del sys.modules[name]
    sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", str(ROOT)))]
    sys.dont_write_bytecode = earlier is not None
    numba.core.config.CACHE_DIR = caches  # pyright: ignore[reportAttributeAccessIssue]
    plugin = Quickest(earlier, limit)
    code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests], plugins=[plugin])
    results.put((int(code), plugin.seconds))


def passes(
    tree: Path,
    tests: Sequence[str],
    seconds: float,
    caches: str,
    earlier: Mapping[str, float] | None = None,
    limit: float = math.inf,
) -> tuple[bool, dict[str, float]]:
    """Whether the tests pass in a tree, and the seconds of each; too long counts as failed."""
    context = multiprocessing.get_context("forkserver")
    results = context.SimpleQueue()
    arguments = (tree, tests, earlier, limit, caches, results)
    process = context.Process(target=_run_tests, args=arguments)
    process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
    if results.empty():  # killed, or crashed where a mutant lets a kernel write past its end
        return False, {}
    code, measured = results.get()
    return code == 0, measured


def survivors(path: str, options: argparse.Namespace, trees: queue.Queue[Path]):
    """The mutants of a file that its tests let pass, and how many were tried.

    Raises:
        RuntimeError: the tests fail without a mutant.
    """
    tree = trees.get()
    # Of the copy: the tree it was made of may have been edited since.
    source = (tree / path).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as warm:
        passed, seconds = passes(tree, TARGETS[path], 1800, warm)
        trees.put(tree)
        if not passed:
            raise RuntimeError(f"the tests of {path} fail as it is")

        def survives(mutant: tuple[Place, str, str]) -> bool:
            tree = trees.get()
            # Numba's cache notices a change of a kernel's own file only, not of kernels it calls.
            with tempfile.TemporaryDirectory() as cold:
                caches = cold if "@kernel" in source else warm
                try:
                    (tree / path).write_text(mutant[2], encoding="utf-8")
                    limit = 60 + 8 * options.seconds
                    tests = TARGETS[path]
                    return passes(tree, tests, limit, caches, seconds, options.seconds)[0]
                finally:
                    (tree / path).write_text(source, encoding="utf-8")
                    trees.put(tree)

        mutants = draw(source, options.count, options.seed)
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            survived = list(pool.map(survives, mutants))
    return [m for m, alive in zip(mutants, survived, strict=True) if alive], len(mutants)


def main() -> int:
    """Prints killed and total per file and what survived; 1 where less than 90 % died."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("files", nargs="*", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--count", type=int, default=30, help="mutants per file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="mutants at the same time")
    parser.add_argument(
        "--seconds", type=float, default=20, help="of tests per mutant, fast ones first"
    )
    options = parser.parse_args()
    if unknown := set(options.files) - TARGETS.keys():
        parser.error(f"{', '.join(sorted(unknown))}: not among the files with known tests")
    paths = {*TARGETS, *itertools.chain(*TARGETS.values())}
    if moved := [path for path in sorted(paths) if not (ROOT / path).exists()]:
        parser.error(f"{', '.join(moved)}: not where TARGETS of {Path(__file__).name} says")
    # What takes seconds to import is imported once, and every run of tests is forked from there.
    os.environ["JAX_PLATFORMS"] = "cpu"
    multiprocessing.get_context("forkserver").set_forkserver_preload([*LIBRARIES, __name__])
    killed = total = 0
    with tempfile.TemporaryDirectory() as folder:
        trees: queue.Queue[Path] = queue.Queue()
        for job in range(options.jobs):
            tree = Path(folder, str(job))
            for package in (*PACKAGES, "configs"):
                ignore = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / package, tree / package, ignore=ignore)
            for name in ("setup.cfg", "pyproject.toml"):
                shutil.copy(ROOT / name, tree)
            trees.put(tree)
        for path in options.files or TARGETS:
            alive, tried = survivors(path, options, trees)
            killed, total = killed + tried - len(alive), total + tried
            print(f"{path}: {tried - len(alive)} of {tried} killed", flush=True)
            for (line, column), operator, mutated in alive:
                text = mutated.splitlines()[line - 1].strip()
                print(f"    {line}:{column} {operator}: {text}", flush=True)
    print(f"{killed} of {total} killed ({killed / total:.0%})")
    return killed < 0.9 * total


if __name__ == "__main__":
    sys.exit(main())
