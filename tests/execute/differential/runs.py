"""Compares random cases with ``jax.lax`` in processes of their own, and counts the verdicts."""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator

import jax
from jax import lax

from tests.execute.differential.cases import Case, draw
from tests.execute.differential.comparison import (
    BEYOND,
    VERDICTS,
    checked_with_numpy,
    compare,
    read,
)
from tests.execute.differential.programs import Run, first_line
from tests.execute.meshes.xla_flags import cpu_devices


def work(first: int, end: int, *modules: str) -> None:
    """Compare the cases of some seeds, a line of JSON before and after each."""
    for seed in range(first, end):
        print(json.dumps([seed]), flush=True)
        verdict = compare(draw(seed)) if not modules else _alone(draw(seed), *modules)
        print(json.dumps([seed, *verdict]), flush=True)
        if seed % 100 == 99:
            jax.clear_caches()


def _alone(case: Case, name: str) -> tuple[str, str]:
    """Run one module's program, to see whether XLA aborts; "raw" is ``jax.lax`` as it stands."""
    with jax.enable_x64(case.x64), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == "jc":
            return checked_with_numpy(Run(case), "compiled")
        try:
            jax.tree.map(read, Run(case, raw=name == "raw").values(lax))
        except Exception as error:
            return "fails", first_line(error)
    return "runs", name


def compared(first: int, count: int) -> Iterator[tuple[int, str, str]]:
    """(seed, verdict, what about) of cases, compared in processes that XLA may abort."""
    end = first + count
    while first < end:
        seed, found = None, None
        for line in _lines(first, end):
            seed, *found = json.loads(line)
            if found:
                yield seed, *found
        if seed is None:
            raise RuntimeError("the process that compares cases did not start")
        if not found:
            yield seed, *_aborted(seed)
        first = seed + 1


def _aborted(seed: int) -> tuple[str, str]:
    """The verdict on a case at which XLA aborts: whether it does so on either program alone."""
    said = {name: [*_lines(seed, seed + 1, name)] for name in ("jc", "lax", "raw")}
    # Of a program that aborts there is only the first line, of its start.
    found = {name: json.loads(lines[-1])[1:] for name, lines in said.items()}
    if found["jc"] and not found["lax"]:
        return tuple(found["jc"])
    if not found["jc"] and (not found["raw"] or found["raw"][0] == "fails"):
        return "refused", "XLA aborts"
    return "differs", f"XLA aborts; alone: {found}"


def _lines(*arguments) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.execute.differential", "--work", *map(str, arguments)]
    # Most of the time goes into compiling, and sums of small integers do not depend on how well.
    flags = cpu_devices(16)
    with subprocess.Popen(
        command,
        env=os.environ | {"XLA_FLAGS": flags},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        yield from process.stdout or ()


def main() -> int:
    """Compare cases, print differences and how many of each verdict; 1 if any differ."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        first, end, *modules = arguments.work
        work(int(first), int(end), *modules)
        return 0
    verdicts: collections.Counter[str] = collections.Counter()
    for seed, verdict, about in compared(arguments.seed, arguments.cases):
        verdicts[verdict] += 1
        if verdict == "beyond":
            key, _, checked = about.partition(", ")
            verdicts[f"beyond: {BEYOND[key]}"] += 1
            verdicts["values compared with NumPy's"] += bool(checked)
        if verdict == "differs":
            print(f"seed {seed}: {about}\n    {draw(seed)}", flush=True)
        if sum(verdicts[v] for v in VERDICTS) % 100 == 0:
            print(f"up to seed {seed}: {dict(verdicts)}", file=sys.stderr, flush=True)
    print(f"jax {jax.__version__}")
    for verdict, count in sorted(verdicts.items()):
        print(f"{count:6d} {verdict}")
    return int(verdicts["differs"] > 0)
