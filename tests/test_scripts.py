"""The commands under scripts/ run, with the smallest settings that each has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "scripts"
COMMANDS = sorted(path.name for path in SCRIPTS.iterdir() if not path.name.startswith("_"))

# Of each command the arguments of its runs. `test` is what runs this test, and `pictures` draws
# into the documentation: of both, the commands they would start are read instead. `docs` installs
# Sphinx; tests/test_site.py builds the site where it is installed. `mutants` runs tests in turn.
SMALLEST = ("synth.names=[ring]", "topology.sides=[2,2]", "sizes=[1024]", "elements=5")
UNTRAINED = ("train.steps=1", "train.hidden=[8]", "train.accuracy_wanted=0")
RUNS = {
    "bench": [(), ("tacos", "--help")],
    "docs": [],
    "mutants": [],
    "pictures": [],
    "release": [("--help",)],
    "run": [("--help",), (*SMALLEST, *UNTRAINED)],
    "test": [],
    "words": [("setup.cfg",)],
}


def environment_of_the_scripts() -> list[str]:
    """The arguments by which a script takes the environment that runs this test."""
    name = Path(sys.prefix).name
    if Path(sys.prefix).parent != ROOT or not name.startswith(".venv"):
        pytest.skip("the tests do not run in an environment that the scripts made")
    version = name.removeprefix(".venv").removeprefix("-")
    if version == "lowest":
        return ["--lowest"]
    return ["--python", version] if version else []


def test_every_command_is_run():
    assert [*RUNS] == COMMANDS


# The smallest run imports what its help does, and another test here asks every benchmark for help.
SLOW = {("run", ("--help",)), ("bench", ("tacos", "--help"))}


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        pytest.param(command, run, marks=[pytest.mark.slow] * ((command, run) in SLOW))
        for command, runs in RUNS.items()
        for run in runs
    ],
)
def test_a_command_runs(command, arguments, tmp_path):
    if command == "run" and arguments != ("--help",):
        arguments = (*arguments, f"results={tmp_path}")
    chosen = [] if command == "words" else environment_of_the_scripts()
    done = subprocess.run(
        [SCRIPTS / command, *chosen, *arguments],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("command", ["_env", *COMMANDS])
def test_the_python_in_a_script_runs(command):
    """A script asks our own packages while it installs: nothing else would run that code here."""
    text = (SCRIPTS / command).read_text(encoding="utf-8")
    ours = [code for code in re.findall(r"-c '([^']+)'", text) if "jaxcoll" in code]
    assert bool(ours) == (command == "_env")
    for code in ours:
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=ROOT)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_modules_that_a_script_starts_are_there(command):
    text = (SCRIPTS / command).read_text(encoding="utf-8")
    for module in re.findall(r"-m (experiments[\w.]*)", text):
        path = ROOT.joinpath(*module.split("."))
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


def test_every_benchmark_has_a_command_that_explains_it():
    """A benchmark that cannot even be imported would be found by its next user only."""
    found = subprocess.run(
        [sys.executable, "-c", LOAD_ALL],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-2000:]


LOAD_ALL = """
from experiments.benchmarks import __main__ as command
for name in command.find():
    try:
        command.load(name)(["--help"])
    except SystemExit as ended:
        assert ended.code == 0, name
    else:
        raise AssertionError(f"{name} --help runs it")
"""


@pytest.mark.parametrize("command", ["docs", "mutants", "pictures", "release", "test"])
def test_help_is_printed_without_any_set_up(command, tmp_path):
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    for name in ("_env", command):
        (scripts / name).write_bytes((SCRIPTS / name).read_bytes())
    run = ["bash", scripts / command, "--help"]
    printed = subprocess.run(run, check=True, capture_output=True, text=True, timeout=20)
    head = (SCRIPTS / command).read_text().splitlines()[1].removeprefix("# ")
    assert printed.stdout.startswith(head + "\n")
    assert "source" not in printed.stdout
    assert printed.stderr == ""
    assert list(tmp_path.iterdir()) == [scripts]
