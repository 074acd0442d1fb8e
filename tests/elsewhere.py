"""Code in other processes: its output, files that it is writing, and values on their way there."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path

from jaxcoll import aot

ROOT = Path(__file__).parents[1]


def printed_elsewhere(code: str) -> set[str]:
    """The distinct outputs of the code in two processes with other hash seeds."""
    return {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "PATH": ""},
        ).stdout
        for seed in ("1", "2")
    }


def compiled_elsewhere(worker: Path, *arguments: str) -> list[dict]:
    """The rows that a script prints where compilers of machines that are not here can run."""
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    environment.update(aot.ENVIRONMENT)
    paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    done = subprocess.run(
        [sys.executable, str(worker), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@contextlib.contextmanager
def writing_elsewhere(code: str, path: Path) -> Iterator[subprocess.Popen]:
    """A process in the middle of writing a path, its argument; killed in the end.

    Args:
        code: prints "writing" when it has begun.
    """
    child = subprocess.Popen(
        [sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "writing\n"
        yield child
    finally:
        child.kill()
        child.communicate()


class Pickling(Executor):
    """An executor without a process: functions, jobs and results are pickled all the same.

    Attributes:
        jobs: how many it was given.
    """

    def __init__(self):
        self.jobs = 0

    def submit(self, fn, /, *args, **kwargs):
        self.jobs += 1
        copy, given, named = pickle.loads(pickle.dumps((fn, args, kwargs)))  # noqa: S301
        future: Future = Future()
        try:
            future.set_result(pickle.loads(pickle.dumps(copy(*given, **named))))  # noqa: S301
        except Exception as error:
            future.set_exception(error)
        return future


class Forking:
    """A process that has imported the libraries and forks itself for each piece of code.

    Importing takes two seconds, more than most pieces of code that tests run by themselves. Each
    begins as in a Python of its own: it sees nothing that an earlier one did. JAX makes its threads
    and devices when it is first used, so after the fork.

    Args:
        environment: the environment of all processes.
    """

    def __init__(self, environment: Mapping[str, str]):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.elsewhere"],
            cwd=ROOT,
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


def printed_by_processes(
    module: str, processes: int, arguments: Sequence[object], awaited: int | None = None
) -> list[str]:
    """What processes printed that were forked together, after the libraries had been imported.

    Args:
        module: its ``main`` takes a free port, the number of processes, the process's own, and the
            arguments as text.
        awaited: the number of processes, from the first, whose end is waited for; all by default.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    asked = [module, port, processes, processes if awaited is None else awaited, *arguments]
    started = subprocess.Popen(
        [sys.executable, "-m", "tests.elsewhere", *map(str, asked)],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        return json.loads(started.communicate(timeout=250)[0])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)


def survivors(processes: int, what: str) -> int:
    """How many processes reach the end where what happens is this."""
    return processes - (what in ("killed", "stalled"))


def leave(process: int, awaited: int) -> None:
    """End this process, the first of the awaited last: with it JAX ends all others."""
    from jaxcoll import jax_internals

    sys.stdout.flush()
    jax_internals.publish(f"tests/left/{process}", "")
    if process == 0:
        for other in range(1, awaited):
            jax_internals.fetch(f"tests/left/{other}", 20)
    os._exit(0)


def _fork_together(module: str, port: int, processes: int, awaited: int, arguments) -> list[str]:
    """What each of the awaited processes printed, on both streams."""
    worker = importlib.import_module(module)
    files = [tempfile.TemporaryFile("w+") for _ in range(processes)]  # noqa: SIM115
    children = []
    for process, file in enumerate(files):
        child = os.fork()
        if not child:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            try:
                worker.main(port, processes, process, *arguments)
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        children.append(child)
    printed = []
    for child, file in list(zip(children, files, strict=True))[:awaited]:
        os.waitpid(child, 0)
        file.seek(0)
        printed.append(file.read())
    return printed


def main() -> None:
    """Import, then fork the processes of the arguments, or for every line of the standard input."""
    import jax  # noqa: F401

    import tensorstate  # noqa: F401

    warnings.filterwarnings("ignore", message="os.fork", category=RuntimeWarning)
    if len(sys.argv) > 1:
        module, port, processes, awaited, *arguments = sys.argv[1:]
        counts = (int(port), int(processes), int(awaited))
        print(json.dumps(_fork_together(module, *counts, arguments)), flush=True)
        return
    for line in sys.stdin:
        print(json.dumps(_fork(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
