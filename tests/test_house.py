"""The house itself: the commands that work right after a checkout, and its wording."""

from __future__ import annotations

import ast
import itertools
import os
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
