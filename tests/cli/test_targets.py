"""Compilers for TPU slices, where libtpu is installed: slices by name are what it describes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.calls import ROOT, process

COMPARED = """
import os
from jaxcoll import aot
from jaxcoll.cli.networks import named_network
for name in ("v4:2x2x2", "v4:4x4x4", "v5e:4x8", "v5e:16x16", "v5p:4x4x8", "v6e:4x4"):
    described, named = aot.target(name).topology, named_network(name)
    assert described == named, name
    assert described.placement == named.placement, name
"""


@pytest.mark.targets("tpu")
def test_slices_by_name_are_those_that_the_compiler_describes():
    first = "import os; os.environ.update(JAX_PLATFORMS='cpu', TPU_SKIP_MDS_QUERY='1', "
    first += "TPU_WORKER_HOSTNAMES='localhost', ALLOW_MULTIPLE_LIBTPU_LOAD='1')\n"
    subprocess.run([sys.executable, "-c", first + COMPARED], check=True, cwd=ROOT)


@pytest.mark.targets("tpu")
def test_a_function_is_compiled_for_a_slice(tmp_path):
    (tmp_path / "train.py").write_text("import jax\ndef total(x): return jax.lax.psum(x, 'i')\n")
    arguments = ["targets", "v5e:4x8", "train:total", "f32[1024@i,128]", "--out", "-", "--json"]
    done = process(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["devices"], found["native"]) == (32, {"all-reduce": 1})


@pytest.mark.slow
def test_what_is_missing_is_said(tmp_path):
    (tmp_path / "train.py").write_text("def total(x): return x\n")
    hidden = "import sys; sys.modules['libtpu'] = None\n"
    for arguments, said in (
        (["v9:4x8", "train:total", "f32[32]"], "unknown target 'v9:4x8'"),
        (["v5e:4x8"], "MODULE:FUNCTION"),
    ):
        done = process("targets", *arguments, first=hidden, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
    listed = process("targets", "--json", cwd=tmp_path)
    platforms = [each["platform"] for each in json.loads(listed.stdout)["compilers"]]
    assert platforms == ["tpu", "gpu"]
