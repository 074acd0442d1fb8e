"""First answers of a fresh process with empty caches: CPU seconds, imports, what kernels wait for.

A user's first answers are those of the README's first block, of ``jc.synthesize`` on two DGX H100
and of ``jaxcoll compare torus:4x4``. What such a process waits for is the import of its packages,
kernels that run as Python, and Numba, which compiles others; not machine code that the installation
brought (``jaxcoll/numerics/machine_code.py``). ``--unlisted`` prints the signatures that the
answers ask for and ``signatures.txt`` lacks, as lines to add to it.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.benchmarks.report import report, text, write
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
    assert not end.code, end.code
"""

# What a process writes at its end: of every kernel that ran, the versions taken from the library,
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
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    if block is None:
        raise ValueError("README.md has no block of Python")
    return {"README": block[1], "dgx_h100(2)": DGX, "compare torus:4x4": COMPARE}


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
        command = [sys.executable, "-c", WATCHED, f"{empty}/out", code, str(asked)]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            command, env=environment, cwd=empty, check=True, capture_output=True, text=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found = json.loads(Path(empty, "out").read_text())
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**found, "CPU s": seconds}


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
    rows = []
    for row in measure():
        rows.append(row)
        print("  ".join(f"{column} {text(value)}" for column, value in row.items()), flush=True)
        write("cold", rows)
    report("cold", rows)
