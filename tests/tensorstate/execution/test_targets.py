"""Plans compile for machines that are not here; ``scripts/test --targets`` brings the compilers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxcoll import aot

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "platform", "sides"),
    [("v5e:4x4", "tpu", (4, 4)), ("h100:8", "gpu", (2, 4))],
    ids=["v5e:4x4", "h100:8"],
)
def test_a_plan_compiles_with_either_kind_of_collectives(name, platform, sides):
    if not aot.is_available(platform):
        pytest.skip(f"the compiler for {name} is not installed; scripts/test --targets does so")
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    environment.update(aot.ENVIRONMENT)
    paths = (str(ROOT), os.environ.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    worker = Path(__file__).with_name("compile_plan.py")
    done = subprocess.run(
        [sys.executable, str(worker), name, *map(str, sides)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    native, scheduled = rows
    assert native["all-reduce"] > 0
    assert native["collective-permute"] == 0
    assert scheduled["all-reduce"] == 0
    assert scheduled["collective-permute"] > native["all-reduce"]
