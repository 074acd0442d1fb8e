"""Compiled programs: instructions read from HLO text, and summaries of them."""

from __future__ import annotations

import contextlib
from importlib import metadata

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll import aot
from jaxcoll.errors import CollectiveError, FormatError, TopologyError
from tests.execute.harness import mesh_of

TPU = """\
HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[8]{0})->f32[8]{0}}, \
num_partitions=4

FileNames
1 "f.py"

%fused_computation (param_0: f32[8]) -> f32[8] {
  %param_0 = f32[8]{0:T(1024)} parameter(0)
  ROOT %add.1 = f32[8]{0:T(1024)} add(%param_0, %param_0)
}

%moving (param_0.1: f32[8]) -> f32[8] {
  %param_0.1 = f32[8]{0} parameter(0)
  ROOT %copy.9 = f32[8]{0} copy(%param_0.1)
}

%matmul (param_0.2: f32[8]) -> f32[8] {
  %param_0.2 = f32[8]{0} parameter(0)
  ROOT %convolution.1 = f32[8]{0} convolution(%param_0.2, %param_0.2), dim_labels=bf_io->bf
}

%body (wide: (s32[], f32[8])) -> (s32[], f32[8]) {
  %wide = (s32[]{:T(128)}, f32[8]{0:T(1024)}, /*index=2*/f32[8]{0}) parameter(0)
  %x.1 = f32[8]{0:T(1024)} get-tuple-element(%wide), index=1
  %start.5 = (f32[8]{0}, f32[8]{0}, u32[]{:S(2)}) collective-permute-start(%x.1), channel_id=1, \
source_target_pairs={{0,1},{1,0},{2,2}}, backend_config={"barrier_config":{"id":"0"}}
  %fusion.5 = f32[8]{0} fusion(%x.1), kind=kLoop, calls=%fused_computation
  %done.5 = f32[8]{0} collective-permute-done(%start.5)
  ROOT %tuple.5 = (s32[], f32[8]{0}) tuple(%x.1, /*index=1*/%done.5)
}

%condition (wide.1: (s32[], f32[8])) -> pred[] {
  %limit = s32[]{:T(128)} constant(3)
  %wide.1 = (s32[]{:T(128)}, f32[8]{0:T(1024)}) parameter(0)
  %i = s32[] get-tuple-element(%wide.1), index=0
  ROOT %lt = pred[] compare(%i, %limit), direction=LT
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0:T(1024)} parameter(0), metadata={op_name="a \\" ) { quote"}
  %start = (f32[8]{0}, f32[8]{0}) collective-permute-start(%p), source_target_pairs={{0,1},{1,2}}
  %start.1 = (f32[8]{0}, f32[8]{0}) collective-permute-start(%p), source_target_pairs={{1,0}}
  %dot = f32[8]{0} fusion(%p), kind=kOutput, calls=%matmul
  %done = f32[8]{0} collective-permute-done(%start)
  %done.1 = f32[8]{0} collective-permute-done(%start.1)
  %start.2 = (f32[8]{0}, f32[8]{0}) collective-permute-start(%p), source_target_pairs={{1,0}}
  %done.2 = f32[8]{0} collective-permute-done(%start.2)
  %t = (s32[], f32[8]{0}) tuple(%p, %done)
  %while = (s32[], f32[8]{0}) while(%t), condition=%condition, body=%body
  %copy = f32[8]{0} copy(%done.1)
  %fast = f32[8]{0:S(1)} copy(%done.1)
  %fusion.2 = f32[8]{0} fusion(%copy), kind=kLoop, calls=%moving
  %copy-start = (f32[8]{0}, f32[8]{0:S(1)}, u32[]{:S(2)}) copy-start(%fast)
  %copy-done = f32[8]{0} copy-done(%copy-start)
  ROOT %sum = f32[8]{0} all-reduce(%copy-done), replica_groups={{0,1},{2,3}}, \
to_apply=%fused_computation
}
"""

GPU = """\
HloModule jit_f, is_scheduled=true, num_partitions=8

%step (a: f32[4], b: f32[4]) -> (f32[4], f32[4]) {
  %a = f32[4]{0} parameter(0)
  %s.1 = (f32[4]{0}, f32[4]{0}) collective-permute-start(%a), source_target_pairs={{0,1}}
  %d.1 = f32[4]{0} collective-permute-done(%s.1)
  %b = f32[4]{0} parameter(1)
  %s.2 = (f32[4]{0}, f32[4]{0}) collective-permute-start(%b), source_target_pairs={{0,2}}
  %d.2 = f32[4]{0} collective-permute-done(%s.2)
  ROOT %t = (f32[4]{0}, f32[4]{0}) tuple(%d.1, %d.2)
}

ENTRY %main (p: f32[4]) -> f32[32] {
  %p = f32[4]{0} parameter(0)
  %s = ((f32[4]{0}, f32[4]{0}), (f32[4]{0}, f32[4]{0})) async-start(%p, %p), calls=%step
  %gemm = f32[4]{0} custom-call(%p, %p), custom_call_target="__cublas$gemm"
  %d = (f32[4]{0}, f32[4]{0}) async-done(%s)
  %g = f32[4]{0} get-tuple-element(%d), index=0
  %one = f32[4]{0} collective-permute(%g), source_target_pairs={{0,1}}
  %loop = f32[4]{0} while(%one), condition=%c, body=%b, \
backend_config={"known_trip_count":{"n":"7"}}
  ROOT %all = f32[32]{0} all-gather(%one), replica_groups=[1,8]<=[8], dimensions={0}
}

%b (q: f32[4]) -> f32[4] {
  %q = f32[4]{0} parameter(0)
  ROOT %z = f32[4]{0} negate(%q)
}
"""


def test_instructions():
    module = aot.parse(TPU)
    assert (module.entry, module.num_partitions) == ("main", 4)
    by_name = {i.name: i for lines in module.computations.values() for i in lines}
    start = by_name["start.5"]
    assert (start.opcode, start.operands) == ("collective-permute-start", ("x.1",))
    assert start.attribute("source_target_pairs") == "{{0,1},{1,0},{2,2}}"
    assert start.attribute("pairs") is None
    assert start.nbytes == 32 + 32 + 4
    assert start.largest_part == 32
    assert by_name["tuple.5"].operands == ("x.1", "done.5")
    assert by_name["tuple.5"].is_root
    assert by_name["while"].calls == ("condition", "body")
    assert by_name["fast"].memories == {"1"}
    assert by_name["p"].opcode == "parameter"


def test_trip_counts():
    module = aot.parse(TPU)
    loop = next(i for i in module.computations["main"] if i.opcode == "while")
    assert module.trip_count(loop) == 3
    other = TPU.replace("direction=LT", "direction=NE")
    assert aot.parse(other).trip_count(loop) is None
    assert aot.summarize_module(aot.parse(other)).unknown_loops == 1
    gpu = aot.parse(GPU)
    loop = next(i for i in gpu.computations["main"] if i.opcode == "while")
    assert gpu.trip_count(loop) == 7


def test_summary_of_permutes_in_flight():
    summary = aot.summarize_module(aot.parse(TPU), temp_bytes=16, output_bytes=32)
    assert summary.sizes == (2, 1, 1, 1, 1)
    assert [burst.times for burst in summary.bursts] == [1, 1, 3]
    assert summary.permutes == summary.launches - 1 == 6
    assert summary.in_flight == 2
    assert summary.together
    assert (summary.kernels, summary.matmuls) == (1 + 3 + 3, 1)
    assert summary.covered_matmuls == 1
    assert summary.native == {"all-reduce": 1}
    assert summary.copies == {32: 2}  # not those from and into another memory
    assert (summary.copies_of(32), summary.copies_of(33)) == (2, 0)
    assert summary.temp_ratio == 0.5
    # Four pairs of distinct ranks outside the loop and two inside, 32 bytes each, 4 devices; and
    # an all-reduce of 32 bytes over two.
    assert summary.wire_bytes == 32 * (4 + 3 * 2) / 4 + 2 * 0.5 * 32


def test_a_start_after_an_await_is_no_step():
    swapped = TPU.replace("  %done = f32[8]{0} collective-permute-done(%start)\n", "")
    line = "  %start.2 = "
    swapped = swapped.replace(
        "  %done.1 = ", "  %done = f32[8]{0} collective-permute-done(%start)\n@  %done.1 = "
    )
    head, tail = swapped.split("@")
    begins = tail.index(line)
    ends = tail.index("\n", begins) + 1
    rolling = head + tail[begins:ends] + tail[:begins] + tail[ends:]
    summary = aot.summarize_module(aot.parse(rolling))
    assert summary.sizes[0] == 3
    assert summary.in_flight == 2
    assert not summary.together


def test_summary_of_a_group():
    summary = aot.summarize_module(aot.parse(GPU))
    assert summary.sizes == (2, 1)
    assert summary.launches == 2 + 1
    assert summary.in_flight == 2
    assert summary.covered_matmuls == summary.matmuls == 1
    assert summary.native == {"all-gather": 1}
    assert summary.kernels == 1 + 7
    assert summary.wire_bytes == 3 * 16 / 8 + 7 / 8 * 128


@pytest.mark.parametrize("text", ["", "HloModule x\n", "%f (a: f32[]) -> f32[] {\n}\n"])
def test_not_a_module(text):
    with pytest.raises(FormatError, match="no entry computation"):
        aot.parse(text)


def test_an_instruction_without_opcode():
    with pytest.raises(FormatError, match="line 2: expected an opcode"):
        aot.parse("ENTRY %main (p: f32[]) -> f32[] {\n  %p = f32[]\n}\n")


@pytest.mark.parametrize("lowering", ["ssa", "scan"])
def test_what_is_compiled_here(lowering):
    def f(x):
        gathered = jc.all_gather(x, "x", tiled=True, schedule="ring", lowering=lowering)
        return lax.psum(gathered @ gathered.T, "x")

    x = jax.ShapeDtypeStruct((8 * 16, 128), jnp.float32)
    compiled = aot.compile_for(mesh_of(8), f, [x], [P("x")], P())
    summary = aot.summarize(compiled)
    assert summary.permutes == 7 + (lowering == "scan")
    assert summary.native == {"all-reduce": 1}
    assert summary.matmuls == 1
    assert summary.unknown_loops == 0
    assert summary.output_bytes == 128 * 128 * 4


def test_refused_targets():
    for name in ("v5p", "v5p:", "v5p:4x", "v5p:0x4", "h200:8", "v5p:-1x4"):
        with pytest.raises(TopologyError, match="unknown target"):
            aot.target(name)
    if not aot.is_available("tpu"):
        with pytest.raises(TopologyError, match=r"pip install libtpu==0\.0\.[0-9]+"):
            aot.target("v5p:4x4x4")
    if not aot.is_available("gpu"):
        pinned = f"--no-deps jax-cuda12-plugin=={metadata.version('jaxlib')} "
        with pytest.raises(TopologyError, match=pinned):
            aot.target("h100:8")


def test_a_cluster_of_gpus_needs_jax_on_the_cpu(monkeypatch):
    monkeypatch.setattr(aot, "is_available", lambda platform: True)
    with jax_platforms("cuda,cpu"), pytest.raises(TopologyError, match="JAX_PLATFORMS=cpu; it is"):
        aot.target("h100:8")


@contextlib.contextmanager
def jax_platforms(value):
    before = jax.config.jax_platforms
    jax.config.update("jax_platforms", value)
    try:
        yield
    finally:
        jax.config.update("jax_platforms", before)


def test_compilers_follow_the_installed_jax():
    tpu, *gpu = aot.requirements()
    assert any(line.startswith(tpu) for line in metadata.requires("jax") or ())
    assert tpu.startswith("libtpu==")
    assert [line.partition("==")[0] for line in gpu] == [
        "jax-cuda12-plugin",
        "jax-cuda12-pjrt",
        "nvidia-cuda-nvcc-cu12",
    ]
    assert gpu[0].endswith(metadata.version("jaxlib"))


def test_any_tree_of_shapes_and_dtypes_is_compiled():
    def step(params, batch, scale):
        x, labels = batch
        return jax.tree.map(lambda w: (w * scale).astype(w.dtype), params), (
            jc.psum(x.astype(jnp.float32).sum(), "x"),
            labels,
        )

    shape = jax.ShapeDtypeStruct
    params = {"w": shape((4, 3), jnp.bfloat16), "b": [shape((3,), jnp.float32)]}
    batch = (shape((16, 4), jnp.float16), shape((16,), jnp.int32))
    compiled = aot.compile_for(
        mesh_of(8),
        step,
        (params, batch, shape((), jnp.float32)),
        (P(), (P("x"), P("x")), P()),
        (P(), (P(), P("x"))),
    )
    dtypes = [str(leaf.dtype) for leaf in jax.tree.leaves(compiled.in_avals)]
    assert dtypes == ["float32", "bfloat16", "float16", "int32", "float32"]


def test_what_is_no_shape_is_not_compiled():
    x = jax.ShapeDtypeStruct((16,), jnp.float32)
    with pytest.raises(CollectiveError, match=r"takes pytrees of jax.ShapeDtypeStruct"):
        aot.compile_for(mesh_of(8), lambda v: v, [(16,)], [P("x")], P("x"))
    with pytest.raises(CollectiveError, match="does not match the arguments"):
        aot.compile_for(mesh_of(8), lambda v, w: v + w, [x, x], [P("x")], P("x"))


def test_wire_bytes_agree_with_the_schedule():
    n, width = 8, 16
    compiled = aot.compile_for(
        mesh_of(n),
        lambda x: jc.all_gather(x, "x", tiled=True, schedule="ring"),
        [jax.ShapeDtypeStruct((n * width,), jnp.float32)],
        [P("x")],
        P("x"),
    )
    assert (
        aot.summarize(compiled).wire_bytes == (n - 1) * width * jnp.zeros(0, jnp.float32).itemsize
    )
    assert np.prod(jax.tree.leaves(compiled.output_shardings)[0].shard_shape((n * n * width,))) == (
        n * width
    )
