"""The command line as a process: without JAX, interrupted, its reader gone, an extra missing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.calls import ROOT, WITHOUT_JAX, called, process, refused


def test_commands_that_need_no_jax_run_without_it(tmp_path):
    """One after the other in one process: each alone would import for most of its time."""
    path = str(tmp_path / "schedule.json")
    commands = [
        ["synth", "torus:2x2", "-s", "bucket", "-o", path],
        ["verify", path],
        ["simulate", path],
        ["compare", "torus:2x2", "--only", "ring,bucket", "--size", "1MiB"],
        ["bound", "v5p:4x4x4", "--size", "1MiB"],
        ["find", "8", "2", "--no-rates"],
        ["show", "v5e:4x8"],
        ["convert", path, str(tmp_path / "program.xml")],
    ]
    program = (
        f"{WITHOUT_JAX}import json\nfrom jaxcoll.cli import main\n"
        "for arguments in json.loads(sys.argv[1]):\n    assert main(arguments) == 0, arguments"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(commands)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_doctor_says_what_is_missing():
    done = process("doctor", "--json", first=WITHOUT_JAX)
    assert done.returncode == 1
    assert json.loads(done.stdout)["missing"] == ["jax", "jaxlib"]
    assert "type: pip install jax" in process("doctor", first=WITHOUT_JAX).stdout


@pytest.mark.parametrize(
    ("package", "arguments", "said"),
    [
        ("matplotlib", ["show", "ring:4", "-o", "x.png"], "pip install matplotlib"),
        ("jax", ["tune", "run", "-o", "t.json"], "pip install jax"),
        ("jax", ["targets"], "pip install jax"),
        ("jax", ["plan", "m:f", "f32[8]", "--mesh", "a=2", "--network", "ring:2"], "install jax"),
    ],
)
def test_a_missing_package_is_named_with_what_to_type(tmp_path, package, arguments, said):
    first = f"import sys; sys.modules[{package!r}] = None\n"
    done = process(*arguments, first=first, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_it_is_quiet_where_nobody_waits():
    done = process("synth", "torus:4x4", "-s", "tacos")
    assert (done.returncode, done.stderr) == (0, "")


def test_help_loads_neither_numpy_nor_jax():
    program = (
        "import sys; from jaxcoll.cli import main; main(['synth', '--help']); "
        "sys.exit(any(name in sys.modules for name in ('numpy', 'jax', 'numba')))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, cwd=ROOT)


def test_a_terminal_shows_what_is_awaited(tmp_path):
    """On a terminal of its own, a command of seconds says what it does, and wipes that away."""
    script = (
        "import os, pty, sys, time; os.environ['COLUMNS'] = '100'\n"
        "code = pty.spawn([sys.executable, '-c', sys.argv[1]])\n"
        "sys.exit(os.waitstatus_to_exitcode(code))"
    )
    waits = (
        "import time; from jaxcoll.progress import Progress, working\n"
        "with working('searching') as report:\n"
        "    time.sleep(1)\n"
        "    report(Progress(1, 2, 'nearly done', 0.002))\n"
        "    time.sleep(1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, waits],
        capture_output=True, text=True, check=True, cwd=ROOT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "searching (1 s)" in done.stdout
    assert "nearly done: 1 of 2, best 2 ms (" in done.stdout
    assert done.stdout.endswith("\x1b[K")


def test_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "jaxcoll", "show", "ring:4", "--json"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    assert json.loads(done.stdout)["ranks"] == 4


def started(*arguments: str, cwd) -> subprocess.Popen[bytes]:
    # A shell without job control has what it starts in the background ignore Ctrl-C.
    return subprocess.Popen(
        [sys.executable, "-m", "jaxcoll", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_ctrl_c_is_one_line_and_leaves_no_file(tmp_path):
    running = started("synth", "torus:16x16x16", "-s", "tacos", "-o", "schedule.json", cwd=tmp_path)
    time.sleep(3)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (130, b"")
    assert err == b"jaxcoll: interrupted\n"
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    running = started("compare", "torus:2x2", "--size", "1KiB", cwd=tmp_path)
    assert running.stdout is not None
    assert running.stdout.readline().startswith(b"times:")
    running.stdout.close()
    assert running.wait(timeout=240) == 141
    assert running.stderr is not None
    assert running.stderr.read() == b""


@pytest.mark.slow
def test_shells_complete_commands_and_names():
    def completed(words: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-m", "jaxcoll"], capture_output=True, text=True, cwd=ROOT,
            env={
                **os.environ, "_JAXCOLL_COMPLETE": "bash_complete", "COMP_WORDS": words,
                "COMP_CWORD": str(len(words.split(" ")) - 1),
            },
        )  # fmt: skip
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert completed("jaxcoll ver") == ["verify"]
    assert "torus:" in completed("jaxcoll synth tor")
    assert completed("jaxcoll synth torus:2x2 -s tac") == ["tacos"]


USERS_MODULE = """
import jax, jax.numpy as jnp
def step(w, x):
    return w - jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)
def example():
    return jnp.zeros((8, 8)), jnp.zeros((4, 8))
def bad(w):
    raise KeyError('mine')
"""
REST, SHAPES = ["--mesh", "data=2", "--network", "ring:2"], ["f32[8,8]", "float32[4,8]"]


def test_functions_of_the_user(tmp_path, monkeypatch, capsys):
    (tmp_path / "users_train.py").write_text(USERS_MODULE)
    step = ["plan", "users_train:step"]
    done = process(*step, *SHAPES, *REST, "-o", "plan.html", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["mesh"] == {"data": 2}
    assert (tmp_path / "plan.html").read_text().lstrip().lower().startswith("<!doctype html")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    beside = "--beside", "fsdp", "-o", "two.html"
    code, _, error = called(capsys, *step, "--args", "users_train:example", *REST, *beside)
    assert (code, error) == (0, "")
    assert all(name in (tmp_path / "two.html").read_text() for name in ("the plan", '"fsdp"'))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["users_refused:stop", "f32[8]", *REST], "it has"),
        (["users_refused:bad", "f32[8]", *REST], "KeyError: 'mine'"),
        (["nowhere:step", "f32[8]", *REST], "No module named 'nowhere'"),
        (["users_refused", "f32[8]", *REST], "type, say, train:step"),
        (["users_refused:step", "8x8", *REST], "type 'float32[32,128]'"),
        (["users_refused:step", "q8[8]", *REST], "is not a dtype"),
        (["users_refused:step", "q[8]", *REST], "'q' is not a dtype; type float32"),
        (["users_refused:step", "f64[8]", *REST], "type float32, or set JAX_ENABLE_X64=1"),
        (["users_refused:step", *REST], "--args MODULE:FUNCTION"),
        (["users_refused:step", *SHAPES, *REST, "--hardware", "B7"], "known: A100"),
        (["users_refused:step", *SHAPES, "--mesh", "data:2"], "type data=2,model=4"),
        (["users_refused:step", *SHAPES, "--mesh", "data=2"], "add --network"),
        (["users_refused:step", *SHAPES, *REST, "--beside", "fsdp"], "add -o plan.html"),
        (["users_refused:step", *SHAPES, *REST, "--beside", "fsd", "-o", "p.html"], "known: ddp"),
        (["users_refused:step", *SHAPES, "--mesh", "data=4", "--network", "ring:2"], "devices"),
    ],
)
def test_wrong_plans_are_one_line(arguments, said, tmp_path, monkeypatch, capsys):
    (tmp_path / "users_refused.py").write_text(USERS_MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert said in refused(capsys, "plan", *arguments)


def test_an_assumption_is_no_fault_where_warnings_are_errors(monkeypatch):
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    done = process("bound", "ring:4", "--alpha", "5s")
    assert done.returncode == 0
    assert done.stderr.startswith("jaxcoll: warning: a link of alpha 5 s")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_tuning_on_virtual_devices(tmp_path):
    arguments = ["tune", "run", "-o", "t.json", "--devices", "2", "--size", "1KiB"]
    done = process(*arguments, "--evaluations", "2", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["rows"][0]["nbytes"] == 1024
    assert (tmp_path / "t.json").exists()
    done = process("tune", "run", "-o", "t.json", "--devices", "1", cwd=tmp_path)
    assert done.returncode == 2
