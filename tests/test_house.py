"""The house itself: the commands that work right after a checkout, and its wording."""

from __future__ import annotations

import ast
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMMANDS = [
    "scripts/run",
    "scripts/test",
    "scripts/bench",
    "scripts/pictures",
    "scripts/mutants",
    "scripts/docs",
    "scripts/release",
    ".ci/run",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_can_be_started(command):
    path = ROOT / command
    assert path.is_file()
    assert os.access(path, os.X_OK)
    assert path.read_text().startswith("#!/usr/bin/env bash\n")


@pytest.mark.parametrize("script", [*COMMANDS, "scripts/_env"])
def test_scripts_are_valid_bash(script):
    subprocess.run(["bash", "-n", ROOT / script], check=True)


def part_of_slow_tests(folder: Path, *before: str) -> str:
    """The part that continuous integration takes in a copy of the project in a folder."""
    text = (ROOT / ".ci/run").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("part=")]
    commands = "\n".join([f"set -euo pipefail; cd {folder}", *before, "here=.", line, "echo $part"])
    done = subprocess.run(["bash", "-c", commands], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()[-1]


def test_slow_tests_take_turns_by_the_number_of_commits(tmp_path):
    assert part_of_slow_tests(tmp_path) == "0"  # without history
    commit = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m one"
    for count, part in ((1, "1"), (6, "1"), (1, "2")):  # of one, seven and eight commits
        begin = ["git init -q", *[commit] * count]
        assert part_of_slow_tests(tmp_path, *begin) == part


def collected(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_parts_of_the_tests_are_all_of_them():
    file = "tests/core/test_progress.py"
    parts = [
        [line for line in collected(file, part).stdout.splitlines() if "::" in line]
        for part in ("--part=0/1", "--part=0/2", "--part=1/2")
    ]
    assert all(parts)
    assert sorted([*parts[1], *parts[2]]) == sorted(parts[0])
    refused = collected(file, "--part=2/2")
    assert refused.returncode == 4
    assert "--part takes K/N with K from 0 to N - 1, such as 0/6, not 2/2" in refused.stderr


def test_every_script_is_tested_here():
    scripts = {f"scripts/{path.name}" for path in (ROOT / "scripts").iterdir()}
    assert scripts == {*COMMANDS, "scripts/_env", "scripts/words"} - {".ci/run"}


def test_the_files_of_mutants_and_of_their_tests_exist():
    """Their module itself needs the mutation tool, which only ``scripts/mutants`` installs."""
    module = ast.parse((ROOT / "tests/mutation/mutants.py").read_text(encoding="utf-8"))
    (targets,) = [
        ast.literal_eval(line.value)
        for line in module.body
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "TARGETS"
    ]
    assert all((ROOT / path).exists() for path in [*targets, *itertools.chain(*targets.values())])


# A file beside the test that names it, and a path from the root.
BESIDE = re.compile(r'(?:with_name\(|__file__\)\.parent / )"([\w./-]+)"')
FOLDERS = "tests|experiments|jaxcoll|tensorstate|scripts|configs|docs"
FROM_ROOT = re.compile(rf"\b((?:{FOLDERS})(?:/[\w.-]+)+\.(?:py|json|yaml|md|txt))\b")


def missing_files(module: Path) -> list[str]:
    """The files that a module of tests names and that do not exist."""
    text = module.read_text(encoding="utf-8")
    named = [module.parent / name for name in BESIDE.findall(text)]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            named += [ROOT / name for name in FROM_ROOT.findall(node.value)]
    return [str(path) for path in named if not path.exists()]


def test_the_files_that_tests_name_exist(tmp_path):
    """Those that only a slow test starts, or one of compilers, would be missed by few."""
    modules = sorted((ROOT / "tests").rglob("*.py"))
    assert [name for module in modules for name in missing_files(module)] == []
    moved = tmp_path / "test_moved.py"
    moved.write_text(f'run(Path(__file__).with_name("{"worker"}.py"), "{"docs"}/none.md")\n')
    assert len(missing_files(moved)) == 2


def words(*paths: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts/words", *paths]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_wording_of_the_clean_folders():
    found = words()
    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("alpha: seconds a link", "write per, not a"),  # words: ok
        ("the quickest of them", "write fast"),  # words: ok
        ("two steps that are alike", "write identical or equal"),  # words: ok
        ("a chunk that is there.", "write exists"),  # words: ok
        ("the bytes of what is sent", "name the noun"),  # words: ok
        ("an edge that is no link", "write is not a"),  # words: ok
        ("chunks travel together", "write is sent"),  # words: ok
        ("every link turned round", "write reversed"),  # words: ok
        ("    seed: of the draws.", "name what the attribute is"),
    ],
)
def test_habits_of_wording_are_found(tmp_path, line, advice):
    page = tmp_path / "page.md"
    page.write_text(f"{line}\n")
    assert f"page.md:1: {advice}" in words(page).stdout
    page.write_text(f"{line} <!-- words: ok -->\n")
    assert words(page).returncode == 0


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts/run", *arguments], capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("arguments", [["--python"], ["--python", "newest"], ["--python=3.11; ls"]])
def test_only_versions_of_python_are_taken(arguments):
    refused = run_script(*arguments)
    assert refused.returncode == 1
    assert "takes a version such as 3.11" in refused.stderr


def test_a_python_that_is_not_installed_is_named():
    refused = run_script("--python", "3.99")
    assert refused.returncode == 1
    assert "needs Python 3.99" in refused.stderr
    assert not list(ROOT.glob(".venv-3.99*"))


# Names by which a linear program reaches a solver: ours, SciPy's, and the modelling library.
SOLVERS = {"highspy", "linprog", "milp", "cvxpy"}


def named_solvers(text: str) -> set[str]:
    """Those of ``SOLVERS`` that a file imports or calls, and HiGHS where its text has the name."""
    found = {"HiGHS"} if re.search(r"\bHiGHS\b", text) else set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names} & SOLVERS
        elif isinstance(node, ast.ImportFrom) and node.module:
            package = node.module.partition(".")[0]
            found |= {package} & SOLVERS
            # Other modules may be called after integer programs; SciPy's functions are meant.
            if package == "scipy":
                found |= {alias.name for alias in node.names} & SOLVERS
        elif isinstance(node, ast.Attribute):
            found |= {node.attr} & SOLVERS
    return found


def test_one_file_names_the_solver_of_linear_programs():
    """So that another solver, or another version's ways, are one file's work; tests may differ."""
    files = [
        p for name in ("jaxcoll", "tensorstate", "experiments") for p in (ROOT / name).rglob("*.py")
    ]
    named = {str(p.relative_to(ROOT)): named_solvers(p.read_text()) for p in files}
    naming = {path: names for path, names in named.items() if names}
    assert naming == {"jaxcoll/numerics/program.py": {"highspy", "HiGHS"}}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import highspy", {"highspy"}),
        ("import cvxpy as cp", {"cvxpy"}),
        ("from highspy import Highs", {"highspy"}),
        ("from scipy.optimize import linprog, minimize", {"linprog"}),
        ("import scipy\nscipy.optimize.milp(cost)", {"milp"}),
        ("from jaxcoll.synth import milp\nmilp(1)", set()),
        ("x = 1  # HiGHS gives up", {"HiGHS"}),
    ],
)
def test_every_way_to_a_solver_is_seen(text, names):
    assert named_solvers(text) == names
