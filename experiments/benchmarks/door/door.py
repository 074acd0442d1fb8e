"""The door: megabytes and seconds until a first answer, tests, blocks and commands, in one table.

Seconds are CPU seconds of new processes. A cold answer has an empty folder for Numba's cache, a
warm one the folder that the cold one left. Megabytes are those that pip adds to a new environment
that holds JAX; this part downloads about 300 MB.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from experiments.benchmarks.report import report

ROOT = Path(__file__).parents[3]
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


def cpu_seconds(arguments: Sequence[str], **variables: str) -> float:
    """CPU seconds of this Python with some arguments, its children included.

    Raises:
        CalledProcessError: it fails.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT, env={**os.environ, **variables}, check=True, capture_output=True,
    )  # fmt: skip
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
            spent = [cpu_seconds(arguments or readme, **variables) for _ in range(2)]
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
    from jaxcoll.cli.application import COMMANDS

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


def main(argv: Sequence[str]) -> None:
    """Measures the parts that are asked for, all without arguments."""
    parser = argparse.ArgumentParser(prog="door", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all when none is given")
    options = parser.parse_args(argv)
    report("door", (row for part in options.parts or PARTS for row in PARTS[part]()))
