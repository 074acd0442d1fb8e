"""Sizes that keep the house readable: lines and arguments of functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("jaxcoll", "tensorstate", "experiments", "tests")
MOST_FUNCTION_LINES, MOST_ARGUMENTS = 60, 8

# Kernels take the columns that they work on as arguments: Numba inlines neither objects nor tuples
# of arrays for free. Public functions have an argument per option, given by keyword, and document
# each of them.
KERNEL, PUBLIC = "a compiled kernel, called once per element", "options, by keyword"
PARTS = "the parts of an object, which its factory makes from such options"
EXEMPT = {
    "jaxcoll/comparison/__init__.py": {"compare": PUBLIC},
    "jaxcoll/execute/choice/explained.py": {"explain_choice": PUBLIC},
    "jaxcoll/execute/functions.py": {
        "psum_scatter": PUBLIC,
        "all_gather": PUBLIC,
        "all_to_all": PUBLIC,
    },
    "jaxcoll/execute/ragged.py": {"ragged_all_to_all": PUBLIC},
    "jaxcoll/jax_internals.py": {"define": "the rules of a primitive, by keyword"},
    "jaxcoll/numerics/max_flow.py": {"dinic": KERNEL},
    "jaxcoll/numerics/program.py": {"minimize": PUBLIC},
    "jaxcoll/schedule.py": {"from_sends": PUBLIC},
    "jaxcoll/simulation/fair_flows.py": {
        "_run": "a loop over events, all of whose state it holds",
        "_run_ready": "a loop over events, all of whose state it holds",
    },
    "jaxcoll/simulation/kernels.py": {"_run_direct": KERNEL},
    "jaxcoll/synth/building/derive.py": {"_steps": KERNEL},
    "jaxcoll/synth/direct_connect/bfb_steps.py": {"_largest_shares": KERNEL},
    "jaxcoll/bounds/times.py": {"bound": PUBLIC},
    "jaxcoll/synth/entry.py": {"synthesize": PUBLIC},
    "jaxcoll/synth/forestcoll/shortcuts/balancing.py": {"_shift": KERNEL},
    "jaxcoll/synth/forestcoll/shortcuts/alternating_paths.py": {
        "may_take": KERNEL,
        "search": KERNEL,
        "follow": KERNEL,
    },
    "jaxcoll/synth/forestcoll/tree_packing.py": {"_next_edge": KERNEL, "_most": KERNEL},
    "jaxcoll/synth/routing/soft_distances.py": {"soft_flows": KERNEL, "_split": KERNEL},
    "jaxcoll/synth/routing/min_congestion.py": {
        "route": KERNEL,
        "_cheapest": KERNEL,
        "_add": KERNEL,
    },
    "jaxcoll/synth/routing/open_shop.py": {"_listed": KERNEL},
    "jaxcoll/synth/routing/time_stepped.py": {
        "_walk_back": KERNEL,
        "even_out": KERNEL,
        "_reroute": KERNEL,
        "_cheapest": KERNEL,
    },
    "jaxcoll/synth/tacos/events.py": {
        "expand": KERNEL,
        "_match": KERNEL,
        "_prefer_moved": KERNEL,
        "_prefer_copied": KERNEL,
    },
    "jaxcoll/synth/tacos/lockstep.py": {"expand": KERNEL, "match": KERNEL, "_count_need": KERNEL},
    "jaxcoll/synth/trees/joint_trees_kernel.py": {
        "replace": KERNEL,
        "_grow": KERNEL,
    },
    "jaxcoll/synth/trees/multitree.py": {"_add_one_each": KERNEL},
    "jaxcoll/training/error_feedback.py": {"error_feedback": PUBLIC},
    "jaxcoll/training/sharded_optimizer.py": {"zero": PUBLIC},
    "jaxcoll/training/transforms.py": {"all_reduce_gradients": PUBLIC},
    "jaxcoll/tune/offline_tuner.py": {"offline": PUBLIC},
    "jaxcoll/tune/training_step/online_tuner.py": {"online": PUBLIC, "__init__": PARTS},
    "jaxcoll/tune/training_step/preparation.py": {"__init__": PARTS},
    "tensorstate/mesh_search.py": {"search_mesh": PUBLIC},
    "tensorstate/problem/problem.py": {"__init__": PUBLIC},
    "tensorstate/step_search.py": {"search": PUBLIC},
}


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    blocks: list[ast.AST] = [tree]
    while blocks:  # of statements alone: expressions hold no function, and most of the nodes
        node = blocks.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            blocks += getattr(node, part, ())


def num_arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Arguments of a function, ``*args`` and ``**kwargs`` included."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return len(named) + bool(arguments.vararg) + bool(arguments.kwarg)


def too_large(path: Path) -> dict[str, str]:
    """The functions of a file that are over a limit, by name: their line, length and arguments."""
    found = {}
    for function in functions(ast.parse(path.read_bytes())):
        lines = (function.end_lineno or 0) - function.lineno + 1
        count = num_arguments(function)
        if lines > MOST_FUNCTION_LINES or count > MOST_ARGUMENTS:
            found[function.name] = f"line {function.lineno}, {lines} lines, {count} arguments"
    return found


def test_functions_fit_a_screen_or_are_exempt():
    """An exemption that is no longer needed fails too."""
    found = {str(path.relative_to(ROOT)): large for path in modules() if (large := too_large(path))}
    not_exempt = {
        path: large for path, large in found.items() if large.keys() - EXEMPT.get(path, {})
    }
    assert not_exempt == {}
    unneeded = {path: set(EXEMPT[path]) - found.get(path, {}).keys() for path in EXEMPT}
    assert {path: names for path, names in unneeded.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "def long():\n" + "    x = 1\n" * 60,
        "def wide(a, b, /, c, d, *e, f, g, h, **i):\n    pass\n",
    ],
)
def test_larger_functions_are_found(tmp_path, source):
    path = tmp_path / "module.py"
    path.write_text(source)
    assert len(too_large(path)) == 1
