"""First answers of a fresh process with empty caches: CPU seconds, imports, what kernels wait for.

A user's first answers are those of the README's first block, of ``jc.synthesize`` on two DGX H100
and of ``jaxcoll compare torus:4x4``. What such a process waits for is the import of its packages,
kernels that run as Python, and Numba, which compiles others; not machine code that the installation
brought (``jaxcoll/numerics/machine_code.py``). ``--unlisted`` prints the signatures that the
answers ask for and ``signatures.txt`` lacks, as lines to add to it.

``door`` sums up what a first answer takes from the empty machine on.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.timing import report
from jaxcoll.numerics.compiled import COMPILED_AT_ONCE

ROOT = Path(__file__).parents[3]
DGX = """
import jaxcoll as jc
jc.synthesize(jc.topologies.dgx_h100(2), "all_reduce", nbytes=1e9)
"""
COMPARE = """
import sys
from jaxcoll.cli import main
sys.argv = ["jaxcoll", "compare", "torus:4x4"]
try:
    main()
except SystemExit as end:
    if end.code:
        raise
"""

# Written by a process at its end: of every kernel that ran, the versions taken from the library,
# those that Numba compiled, and seconds as Python. `asked` is what its calls by Python were for.
WATCHED = """
import atexit, builtins, importlib, json, sys, time

# CPU seconds of imports, of those within others once.
spent, depth = [0.0], [0]

def timed(load):
    def wrapped(*args, **options):
        depth[0] += 1
        started = time.process_time()
        try:
            return load(*args, **options)
        finally:
            depth[0] -= 1
            if not depth[0]:
                spent[0] += time.process_time() - started
    return wrapped

builtins.__import__, importlib.import_module = map(
    timed, (builtins.__import__, importlib.import_module))
from jaxcoll.numerics import machine_code
from jaxcoll.numerics.compiled import Kernel, is_interpreted

out, code, watches = sys.argv[1:]
asked = {}

def note(self, *args, call=Kernel.__call__):
    kinds = self, *map(machine_code.kind, args)
    if kinds not in asked and not is_interpreted():
        asked[kinds] = [token for each in args for token in machine_code.tokens(each)]
    return call(self, *args)

if watches == "True":
    Kernel.__call__ = note

def finish():
    spaces = [vars(module) for module in list(sys.modules.values()) if module]
    kernels = {id(each): each for space in spaces for each in list(space.values())
               if isinstance(each, Kernel)}.values()
    unlisted = set()
    for (kernel, *_), given in asked.items():
        if machine_code.listed_version(kernel.full_name, given) is None:
            unlisted.add(" ".join([kernel.full_name, *given]))
    with open(out, "w") as file:
        json.dump({
            "uses": {each.full_name: each.uses() for each in kernels if any(each.uses())},
            "numba": "numba" in sys.modules, "library": machine_code.library() is not None,
            "imports s": spent[0], "unlisted": sorted(unlisted),
        }, file)

atexit.register(finish)
exec(compile(code, "first answer", "exec"), {"__name__": "__main__"})
"""


def first_answers() -> dict[str, str]:
    """Programs by name."""
    first, *_ = blocks(ROOT / "README.md")
    return {"README": first, "dgx_h100(2)": DGX, "compare torus:4x4": COMPARE}


def watched(code: str, asked: bool = False) -> dict[str, Any]:
    """Run a program in a process of its own with empty caches, and list the kernels it used.

    Args:
        code: the program.
        asked: whether to note what kernels are called with, which costs time.

    Returns:
        By ``uses`` how often each kernel ran as what; ``CPU s`` of the process and its imports.

    Raises:
        subprocess.CalledProcessError: the program failed.
    """
    with tempfile.TemporaryDirectory() as empty:
        environment = {**os.environ, "NUMBA_CACHE_DIR": f"{empty}/numba", "HOME": empty}
        environment |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
        environment.pop(COMPILED_AT_ONCE, None)
        arguments = ["-c", WATCHED, f"{empty}/out", code, str(asked)]
        seconds = cpu_seconds(arguments, environment, empty)
        return {**json.loads(Path(empty, "out").read_text()), "CPU s": seconds}


def measure() -> Iterator[dict[str, object]]:
    """A row per first answer."""
    for name, code in first_answers().items():
        found = watched(code)
        uses = list(found["uses"].values())
        yield {
            "first answer": name,
            "CPU s": found["CPU s"],
            "imports s": found["imports s"],
            "kernels": len(uses),
            "installed": sum(installed for installed, _, _ in uses),
            "compiled": sum(compiled for _, compiled, _ in uses),
            "as Python": sum(seconds > 0 for *_, seconds in uses),
            "as Python s": sum(seconds for *_, seconds in uses),
            "imports Numba": found["numba"],
        }


def main(argv: Sequence[str]) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(prog="cold", description=__doc__)
    parser.add_argument("--unlisted", action="store_true", help="signatures, as lines to add")
    if parser.parse_args(argv).unlisted:
        found = [watched(code, asked=True)["unlisted"] for code in first_answers().values()]
        print(*sorted({line for lines in found for line in lines}), sep="\n")
        return
    report("cold", measure())


ANSWERS = {
    "README's first block": [],  # filled from the page
    "jaxcoll compare torus:4x4 --size 1MiB": [
        "-m", "jaxcoll", "compare", "torus:4x4", "--size", "1MiB"
    ],
    "jc.synthesize(dgx_h100(2)), 1 GB": [
        "-m", "jaxcoll", "synth", "dgx-h100:2", "--size", "1GB"
    ],
    "jaxcoll --help": ["-m", "jaxcoll", "--help"],
}  # fmt: skip

Row = Mapping[str, object]


def _row(what: str, value: object, unit: str, command: str) -> Row:
    return {"what": what, "value": value, "unit": unit, "command": command}


def cpu_seconds(
    arguments: Sequence[str], environment: Mapping[str, str] = os.environ, folder: str | Path = ROOT
) -> float:
    """CPU seconds of this Python with some arguments, its children included.

    Raises:
        CalledProcessError: it fails.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, *arguments]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def blocks(page: Path) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def megabytes(folder: Path) -> float:
    """Of all files in a folder, as the disk holds them."""
    return sum(path.lstat().st_blocks for path in folder.rglob("*")) * 512 / 2**20


# ---------------------------------------------------------------------- the parts


def imports() -> Iterator[Row]:
    """CPU seconds of imports, beside an interpreter that imports NumPy."""
    base = min(cpu_seconds(["-c", "import numpy"]) for _ in range(5))
    for name in ("jaxcoll", "tensorstate"):
        code = f"import numpy, {name}"
        spent = min(cpu_seconds(["-c", code]) for _ in range(5)) - base
        yield _row(f"import {name}, beside NumPy", round(spent, 2), "CPU s", f'python -c "{code}"')


def answers() -> Iterator[Row]:
    """CPU seconds of first answers."""
    readme = ["-c", blocks(ROOT / "README.md")[0]]
    for what, arguments in ANSWERS.items():
        with tempfile.TemporaryDirectory() as cache:
            variables = {"NUMBA_CACHE_DIR": cache, "JAXCOLL_COMPILE": "", "JAX_PLATFORMS": "cpu"}
            environment = {**os.environ, **variables}
            spent = [cpu_seconds(arguments or readme, environment) for _ in range(2)]
        command = "README.md" if not arguments else "python " + " ".join(arguments)
        for state, seconds in zip(("cold", "warm"), spent, strict=True):
            yield _row(f"{what}, {state}", round(seconds, 1), "CPU s", command)


def installed() -> Iterator[Row]:
    """Megabytes that the package adds to an environment with JAX."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        pip = [f"{folder}/bin/python", "-m", "pip", "install", "-q"]
        subprocess.run([*pip, "jax"], check=True)
        before = megabytes(Path(folder))
        subprocess.run([*pip, str(ROOT)], check=True)
        added = megabytes(Path(folder)) - before
    yield _row("installed beside JAX", round(added), "MB", "pip install jax; pip install .")


def tests() -> Iterator[Row]:
    """Tests that pytest collects in each environment that the scripts have made."""
    code = (
        "import sys, jax, numpy; print(sys.version.split()[0], jax.__version__, numpy.__version__)"
    )
    for python in sorted(ROOT.glob(".venv*/bin/python")):
        versions = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
        asked = [python, "-m", "pytest", "--collect-only", "-q", "-n0", "-m", ""]
        done = subprocess.run(asked, cwd=ROOT, check=False, capture_output=True, text=True)
        count = re.search(r"(\d+) tests? collected", done.stdout)
        python_version, jax_version, numpy_version = versions.stdout.split()
        yield _row(
            f"tests on Python {python_version}, JAX {jax_version}, NumPy {numpy_version}",
            int(count[1]) if count else None,
            "tests",
            f"{python.relative_to(ROOT)} -m pytest --collect-only -m ''",
        )


def site() -> Iterator[Row]:
    """Warnings of the site, which are errors there."""
    with tempfile.TemporaryDirectory() as folder:
        asked = [ROOT / "scripts/docs", folder]
        done = subprocess.run(asked, check=False, capture_output=True, text=True)
    count = len(re.findall(r"\bWARNING\b|\bERROR\b", done.stderr)) if done.returncode else 0
    yield _row("warnings of the site", count, "", "scripts/docs")


def pages() -> Iterator[Row]:
    """Blocks that the tests run, and commands."""
    from jaxcoll.cli import COMMANDS

    folders = (ROOT, ROOT / "docs", ROOT / "docs/notebooks")
    count = sum(len(blocks(page)) for folder in folders for page in folder.glob("*.md"))
    yield _row("blocks of Python in the pages, run by tests", count, "blocks", "tests/test_docs.py")
    yield _row("commands", len(COMMANDS), "commands", "jaxcoll")


PARTS: Mapping[str, Callable[[], Iterator[Row]]] = {
    "pages": pages,
    "imports": imports,
    "answers": answers,
    "tests": tests,
    "site": site,
    "installed": installed,
}


def door(argv: Sequence[str]) -> None:
    """Megabytes and seconds until a first answer, tests, blocks and commands, in one table.

    Seconds are CPU seconds of new processes. A cold answer has an empty folder for Numba's cache, a
    warm one the folder that the cold one left. Megabytes are those that pip adds to a new
    environment that holds JAX; this part downloads about 300 MB.
    """
    parser = argparse.ArgumentParser(prog="door", description=door.__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all when none is given")
    options = parser.parse_args(argv)
    report("door", (row for part in options.parts or PARTS for row in PARTS[part]()))
