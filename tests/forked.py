"""Code in processes that have imported the libraries: ``Forking().run(code, folder)``.

Importing takes two seconds, more than most pieces of code that tests run by themselves. One process
imports, and forks itself for each piece, which then begins as in a Python of its own: nothing that
an earlier one did is seen. JAX makes its threads and devices when it is first used, so after that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Mapping
from pathlib import Path


class Forking:
    """The process that forks itself; closed by ``close``.

    Args:
        environment: of all processes.
    """

    def __init__(self, environment: Mapping[str, str]):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked"],
            cwd=Path(__file__).parents[1],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Exit code, standard output and standard error of code that runs in a folder."""
        asked, told = self._process.stdin, self._process.stdout
        assert asked is not None
        assert told is not None
        print(json.dumps([code, str(folder)]), file=asked, flush=True)
        return subprocess.CompletedProcess(["forked"], *json.loads(told.readline()))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def _fork(code: str, folder: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a piece of code."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # not the parent's pipe
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            os.chdir(folder)
            sys.path[0] = folder  # as for ``python -c``
            os._exit(_run(code))
        _, status = os.waitpid(child, 0)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
        return os.waitstatus_to_exitcode(status), texts[0], texts[1]


def _run(code: str) -> int:
    """Run code as the main module; the exit code."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(compile(code, "<page>", "exec"), vars(main))
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def main() -> None:
    """Import, then fork for every line of the standard input."""
    import jax  # noqa: F401

    import tensorstate  # noqa: F401

    warnings.filterwarnings("ignore", message="os.fork", category=RuntimeWarning)
    for line in sys.stdin:
        print(json.dumps(_fork(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
