"""A program in which a collective is first used is traced, and so compiled, once."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import jax, numpy as np
import jaxcoll as jc
from jax.sharding import PartitionSpec as P

def body(v):
    print("traced")
    return jc.{call}(v, "i", **{options})

mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
step = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False))
for _ in range(3):
    step(np.arange(64.0, dtype="float32")).block_until_ready()
"""


@pytest.mark.parametrize(
    ("call", "options"),
    [
        ("psum", {}),
        ("all_gather", {"schedule": "ring"}),
        ("psum", {"schedule": "auto", "lowering": "scan"}),
    ],
    ids=str,
)
@pytest.mark.slow_members("psum-{}", "psum-{*auto*")
def test_a_program_is_traced_once(call, options):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(call=call, options=options)],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.split() == ["traced"]
