"""What every command promises, held against each of them: a new one is refused until it is here.

JSON alone on stdout; bad input as one line and exit code 2; nothing half-written; completion; and
which of them need JAX.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.shell_completion import ShellComplete

import jaxcoll as jc
from jaxcoll.cli import application
from tests.cli.calls import ROOT, WITHOUT_JAX, called, refused
from tests.emulation.test_emulation import can_emulate


@dataclasses.dataclass(frozen=True)
class Case:
    """A command as it works in the folder of ``folder``.

    Attributes:
        arguments: by position; the options after them.
        needs_jax: whether it is refused where there is no JAX.
        writes: whether a file is its result.
        takes: arguments and options (by their names in click) for which nonsense is a value.
        works_here: whether this machine has all that it needs.
    """

    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    needs_jax: bool = False
    writes: bool = False
    takes: frozenset[str] = frozenset()
    works_here: bool = True


STEP = ("users_step:step", "f32[8,8]", "f32[4,8]")
CASES = {
    "synth": Case(("ring:4", "all_gather"), ("-s", "ring", "-o", "made.json"), writes=True),
    "verify": Case(("schedule.json",)),
    "prove": Case(("schedule.json",), ("--as", "all_gather", "--ranks", "4")),
    "simulate": Case(
        ("schedule.json",), ("--size", "1KiB"), takes=frozenset({"table_path", "prefix"})
    ),
    "convert": Case(("schedule.json", "made.xml"), writes=True, takes=frozenset({"target"})),
    "compare": Case(
        ("ring:4", "all_gather"), ("--only", "ring", "--size", "1KiB", "-o", "made.csv"),
        writes=True,
    ),
    "bound": Case(("ring:4", "all_gather"), ("--size", "1KiB")),
    "find": Case(("8", "2"), ("--no-rates", "--take", "1", "-o", "made.json"), writes=True),
    "show": Case(("ring:4",), ("-o", "made.svg"), writes=True),
    "calibrate": Case(("log.csv",), ("-o", "made.json"), writes=True),
    "measured": Case(("h100-host",)),
    "explain": Case(("ring:2", "all_gather"), ("--size", "1KiB"), needs_jax=True),
    "expect": Case(("h100-host", "all_reduce"), ("--size", "1MiB")),
    "tune run": Case(
        (), ("-o", "made.json", "--size", "1KiB", "--evaluations", "1"), needs_jax=True, writes=True
    ),
    "tune show": Case(("table.json",)),
    "tune diff": Case(("table.json", "table.json")),
    "tune merge": Case(
        ("made.json", "table.json"), writes=True, takes=frozenset({"result"})
    ),
    "plan": Case(
        STEP, ("--mesh", "data=2", "--network", "ring:2", "-o", "made.html"),
        needs_jax=True, writes=True,
    ),
    # Compilers of targets are not in every environment, so only what is here is listed.
    "targets": Case(needs_jax=True, takes=frozenset({"maker", "axes", "out"})),
    "emulate": Case(
        ("ring:2", "true"), ("--bandwidth", "1MB/s"), works_here=can_emulate()
    ),
    # Of a job of several processes, which is tested on an emulated network.
    "probe": Case(needs_jax=True, writes=True, works_here=False),
    "doctor": Case(),
    "completion": Case(("bash",)),
}  # fmt: skip

# Of ranks of a star whose links take 2 us and carry 10 GB/s.
LOG = "collective,ranks,nbytes,seconds\n" + "".join(
    f"broadcast,2,{size},{4e-6 + size / 10e9}\n" for size in (10**5, 10**6, 10**7, 10**8, 10**9)
)
USERS_MODULE = "def step(w, x):\n    return x @ w\n"


def commands(
    group: click.Group = application, name: str = ""
) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by the words that call it."""
    context = click.Context(group)
    for each in group.list_commands(context):
        command = group.get_command(context, each)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{name}{each} ")
        else:
            yield f"{name}{each}", command


COMMANDS = dict(commands())
every_command = pytest.mark.parametrize("name", COMMANDS)


@functools.cache
def texts() -> dict[str, str]:
    schedule = jc.synthesize(jc.topologies.ring(4), "all_gather", "ring")
    return {
        "schedule.json": jc.io.dumps(schedule),
        "table.json": jc.tune.Table().dumps(),
        "log.csv": LOG,
        "users_step.py": USERS_MODULE,
        "empty": "",
        "other.json": '{"format": "another/1"}',
    }


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    for name, text in texts().items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    return tmp_path


def files(folder) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


def case_of(name: str) -> Case:
    assert name in CASES, f"say in CASES how {name!r} is called"
    if not CASES[name].works_here:
        pytest.skip(f"{name} needs what is not here")
    return CASES[name]


def whole(name: str, case: Case) -> list[str]:
    return [*name.split(), *case.arguments, *case.options]


@every_command
@pytest.mark.slow_members("calibrate")
def test_json_is_one_document_and_nothing_else(capsys, folder, name):
    case = case_of(name)
    code, out, err = called(capsys, *whole(name, case), "--json")
    assert (code, err) == (0, "")
    assert isinstance(json.loads(out), dict)
    assert (files(folder) != texts()) == case.writes


@every_command
def test_no_option_takes_nonsense(capsys, folder, name):
    """And no other number, folder or file than it asks for."""
    case, command = case_of(name), COMMANDS[name]
    options = [each for each in command.params if isinstance(each, click.Option)]
    for option in options:
        if option.is_flag or option.name in case.takes:
            continue
        for nonsense in ("non sense", "/no/such/folder/non.sense", "\0"):
            given = [*whole(name, case), option.opts[0], nonsense]
            assert len(refused(capsys, *given)) < 700, given
    for flag in ("--nonsense", "-Q"):
        assert "--help" in refused(capsys, *whole(name, case), flag)
    assert files(folder) == texts()


@every_command
def test_no_argument_takes_nonsense(capsys, folder, name):
    case = case_of(name)
    parameters = [each for each in COMMANDS[name].params if isinstance(each, click.Argument)]
    for at, _ in enumerate(case.arguments):
        if parameters[min(at, len(parameters) - 1)].name in case.takes:
            continue
        for nonsense in (
            "non sense",
            "",
            "-1",
            "/no/such",
            "/",
            "empty",
            "other.json",
            "/dev/null",
        ):
            given = [*case.arguments[:at], nonsense, *case.arguments[at + 1 :]]
            refused(capsys, *name.split(), *case.options, "--", *given)
    assert files(folder) == texts()


@every_command
def test_what_is_missing_or_too_much_is_said(capsys, name):
    case, command = case_of(name), COMMANDS[name]
    if any(each.required for each in command.params):
        assert "Missing" in refused(capsys, *name.split())
    if all(each.nargs == 1 for each in command.params):
        assert "unexpected extra" in refused(capsys, *whole(name, case), *["ring:4"] * 5)


@every_command
@pytest.mark.slow_members("calibrate")
def test_an_interrupt_leaves_no_half_of_a_file(capsys, monkeypatch, folder, name):
    """Ctrl-C at the worst moment: all is written and not yet in its place."""
    case = case_of(name)
    if not case.writes:
        pytest.skip("writes no file")

    def interrupted(source, target, **_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    code, _, err = called(capsys, *whole(name, case), "--json")
    assert (code, err) == (130, "jaxcoll: interrupted\n")
    assert files(folder) == texts()


@every_command
def test_shells_complete_its_options(name):
    words = name.split()
    found = ShellComplete(application, {}, "jaxcoll", "_").get_completions(words, "--")
    completed = {each.value for each in found}
    wanted = {
        option for each in COMMANDS[name].params if isinstance(each, click.Option)
        for option in (*each.opts, *each.secondary_opts) if option.startswith("--")
    }  # fmt: skip
    assert wanted | {"--json", "--help"} <= completed


def test_a_device_that_is_missing_is_said(capsys, monkeypatch):
    import jax

    def devices():
        raise AssertionError  # JAX's own, where JAX_PLATFORMS names what is not installed

    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    said = refused(capsys, *whole("tune run", CASES["tune run"]))
    assert "no devices of JAX_PLATFORMS=cuda" in said
    assert "add --devices 8" in said


def test_without_jax_all_work_that_need_none_and_the_others_say_what_to_type(folder):
    """In one process; ``doctor`` fails there, as it is asked whether all is here."""
    cases = {name: case for name, case in CASES.items() if case.works_here}
    calls = [[*whole(name, case), "--json"] for name, case in cases.items()]
    program = (
        f"{WITHOUT_JAX}import io, json, sys\n"
        "from contextlib import redirect_stderr, redirect_stdout\n"
        "from jaxcoll.cli import main\n"
        "for call in json.loads(sys.argv[1]):\n"
        "    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:\n"
        "        code = main(call)\n"
        "    print(json.dumps([code, out.getvalue(), err.getvalue()]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(calls)],
        capture_output=True, text=True, check=True, cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    for (name, case), line in zip(cases.items(), done.stdout.splitlines(), strict=True):
        code, out, err = json.loads(line)
        if case.needs_jax:
            assert (code, out) == (2, ""), name
            assert err == "jaxcoll: this needs the package jax; type: pip install jax\n", name
        else:
            # On a busy machine a command tells its progress after 5 s.
            told = [line for line in err.splitlines() if not re.search(r"\(\d+ s\)$", line)]
            assert (code, told) == (int(name == "doctor"), []), name
            json.loads(out)
