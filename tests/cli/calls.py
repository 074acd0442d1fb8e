"""How the tests of the command line call it: in this process, and in one of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from jaxcoll import progress
from jaxcoll.cli import main

ROOT = Path(__file__).parents[2]

# What a process runs first so that JAX cannot be imported in it.
WITHOUT_JAX = "import sys; sys.modules.update(dict.fromkeys(('jax', 'jaxlib', 'flax', 'optax')))\n"


# What messages quote, the axes of a mesh as they are typed, and an argument of Python's.
_QUOTED = re.compile(r"""(?<!\w)'[^']*'|(?<!\w)"[^"]*"|data=2,model=4""")
_ARGUMENT = re.compile(r"(?<![-\w./])[a-z][a-z_]{2,40}=\S*")


def arguments_of_python(message: str) -> list[str]:
    """Arguments that a message of the command line names as Python spells them: "groups="."""
    return _ARGUMENT.findall(_QUOTED.sub("", message))


def called(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command, whose messages name options alone."""
    # A machine that does other work as well would have lines of progress.
    with mock.patch.object(progress, "_LONG", 3600.0):
        code = main([str(argument) for argument in arguments])
    done = capsys.readouterr()
    said = "\n".join(line for line in done.err.splitlines() if line.startswith("jaxcoll: "))
    assert arguments_of_python(said) == [], arguments
    return code, done.out, done.err


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line of a command that is refused with exit code 2."""
    code, out, err = called(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("jaxcoll: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


def process(*arguments: str, first: str = "", cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, which may run something first."""
    program = f"{first}import sys; from jaxcoll.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=cwd,
    )
