"""Misuse of programs on devices, of their files, of training and of tuning by measurement."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll import aot, io, topologies, tune
from jaxcoll.execute.buckets import in_buckets, plan_buckets
from jaxcoll.io import chakra, msccl, mscclpp
from tests.aot.test_aot import GPU

RANKS = 4
MESH = Mesh(np.asarray(jax.devices()[:RANKS]), ("i",))
RING = topologies.ring(RANKS)
SCHEDULE = jc.synthesize(RING, "all_reduce", "ring", chunks=1)
TIMELINE = jc.simulate(SCHEDULE, 2**20)
PROGRAM = msccl.lower(SCHEDULE)
TREE = {"a": np.ones(3, np.float32), "b": np.ones((2, 2), np.float32)}
LEAVES = jax.tree.leaves_with_path(TREE)
SHAPE = jax.ShapeDtypeStruct((RANKS, RANKS), jnp.float32)
TASK = tune.Task("all_reduce", 4096, "float32", RANKS)
COUNTS = np.zeros(RANKS, np.int32)
COMMON = {"axis_name": "i", "schedule": "ring", "lowering": "auto"}


def trace_links(path):
    with jc.trace_links(path):
        pass


def traced(function):
    """A function of an array on every rank, traced in ``shard_map``, with its other arguments."""

    def call(**arguments):
        body = jax.shard_map(
            lambda x: function(x, **arguments),
            mesh=MESH, in_specs=P("i"), out_specs=P("i"), check_vma=False,
        )  # fmt: skip
        return jax.eval_shape(body, jax.ShapeDtypeStruct((RANKS * RANKS, 8), jnp.float32))

    return call


def averaged(**arguments):
    """The gradient transformation, made and traced on every rank."""
    return traced(lambda x: jc.optax.all_reduce_gradients(**arguments).update(x, ())[0])()


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    # ------------------------------------------------------------------ collectives
    "psum": (
        traced(jc.psum),
        {**COMMON, "axis_index_groups": None, "accum_dtype": None, "wire_dtype": None},
    ),
    "invariant_sum": (traced(jc.invariant_sum), {**COMMON, "axis": 0, "accum_dtype": None}),
    "pmean": (traced(jc.pmean), {**COMMON, "accum_dtype": None}),
    "pmax": (traced(jc.pmax), COMMON),
    "pmin": (traced(jc.pmin), COMMON),
    "psum_scatter": (traced(jc.psum_scatter), {**COMMON, "scatter_dimension": 0, "tiled": True}),
    "all_gather": (traced(jc.all_gather), {**COMMON, "axis": 0, "tiled": True, "to": "varying"}),
    "all_to_all": (
        traced(jc.all_to_all),
        {**COMMON, "schedule": "direct", "split_axis": 0, "concat_axis": 0, "tiled": True},
    ),
    "ragged_all_to_all": (
        traced(jc.ragged_all_to_all),
        {
            **COMMON, "schedule": "direct", "output": np.zeros((RANKS, 8), np.float32),
            "input_offsets": COUNTS, "send_sizes": COUNTS, "output_offsets": COUNTS,
            "recv_sizes": COUNTS, "axis_index_groups": None, "largest": 1, "check": True,
        },
    ),
    "pbroadcast": (traced(jc.pbroadcast), {**COMMON, "schedule": None, "source": 0}),
    "broadcast": (traced(jc.broadcast), {**COMMON, "schedule": None, "source": 0}),
    "reduce": (traced(jc.reduce), {**COMMON, "schedule": None, "root": 0}),
    "gather": (traced(jc.gather), {**COMMON, "schedule": None, "root": 0}),
    "scatter": (traced(jc.scatter), {**COMMON, "schedule": None, "root": 0}),
    "wires.Cast": (jc.execute.wires.Cast, {"dtype": "bfloat16"}),
    "wires.Scaled": (jc.execute.wires.Scaled, {"dtype": "float8_e5m2", "block": 32}),
    "wires.Int8": (jc.execute.wires.Int8, {"seed": 3, "block": 32}),
    "wires.wire_of": (jc.execute.wires.wire_of, {"wire_dtype": "bfloat16"}),
    "use_topology": (
        lambda **given: jc.use_topology(**given).__enter__(), {"topology": 5, "execution": None}
    ),
    "explain_choice": (
        jc.explain_choice,
        {
            "collective": "none", "nbytes": 1024, "mesh": MESH, "axis_name": "i",
            "topology": None, "execution": None, "largest": None, "wire_dtype": "bfloat16",
            "dtype": "float32",
        },
    ),
    "measure_execution": (
        jc.measure_execution, {"mesh": None, "cache": None, "seconds": 20.0, "progress": None}
    ),
    "probe": (jc.probe, {"mesh": MESH}),
    "trace_links": (trace_links, {"path": "/nowhere/trace.json"}),
    "axis_groups": (jc.mesh.axis_groups, {"mesh": MESH, "axis_name": "i"}),
    "axis_schedule": (
        jc.axis_schedule,
        {"mesh": MESH, "axis_name": "i", "kind": "all_reduce", "synthesizer": "ring", "chunks": 1},
    ),
    "reorder": (jc.reorder, {"mesh_or_devices": MESH, "topology": RING}),
    "compiler_options": (
        lambda mesh, schedule, transport: jc.compiler_options(mesh, schedule, transport=transport),
        {"mesh": MESH, "schedule": SCHEDULE, "transport": None},
    ),
    "Topology.from_mesh": (
        jc.Topology.from_mesh, {"mesh": MESH, "down": (), "alpha": 1e-6, "bandwidth": 1e9}
    ),
    "Topology.from_devices": (
        jc.Topology.from_devices,
        {"devices": MESH.devices.tolist(), "alpha": 1e-6, "bandwidth": 1e9},
    ),
    # ------------------------------------------------------------------ files
    "io.load": (io.load, {"path": "/nowhere/to/read", "max_bytes": 1000}),
    "io.save": (io.save, {"path": "/nowhere/to/write", "obj": RING}),
    "io.open_compact": (io.open_compact, {"folder": "/nowhere/to/read", "topology": RING}),
    "io.multitree.load": (io.multitree.load, {"path": "/nowhere/to/read"}),
    "io.multitree.save": (io.multitree.save, {"path": "/nowhere/to/write", "schedule": SCHEDULE}),
    "io.msccl.lower": (
        msccl.lower, {"schedule": SCHEDULE, "name": "x", "protocol": "Simple", "dialect": "azure"}
    ),
    "io.synthesize_for": (
        io.synthesize_for,
        {
            "topology": RING, "collective": "all_reduce", "synthesizer": "ring",
            "for_runtime": "azure",
        },
    ),
    "io.chakra.dumps": (chakra.dumps, {"timeline": TIMELINE}),
    "io.chakra.check_collective": (chakra.check_collective, {"what": SCHEDULE.collective}),
    "io.chakra.system": (chakra.system, {"timeline": TIMELINE, "prefix": "a"}),
    "io.chakra.save": (chakra.save, {"path": "/nowhere/to/write", "timeline": TIMELINE}),
    "io.chakra.loads": (chakra.loads, {"data": chakra.dumps(TIMELINE)[0]}),
    "io.chakra.lift": (chakra.lift, {"files": chakra.dumps(TIMELINE), "topology": RING}),
    "io.chakra.load": (
        chakra.load, {"path": "/nowhere/to/read", "topology": RING, "max_bytes": 1000}
    ),
    "io.msccl.read": (msccl.read, {"text": msccl.dumps(PROGRAM), "topology": RING}),
    "io.mscclpp.lower": (
        mscclpp.lower, {"schedule": SCHEDULE, "name": "x", "ranks_per_host": 2}
    ),
    "io.mscclpp.dumps": (mscclpp.dumps, {"schedule": SCHEDULE}),
    "io.mscclpp.save": (mscclpp.save, {"path": "/nowhere/to/write", "schedule": SCHEDULE}),
    "io.mscclpp.loads": (mscclpp.loads, {"text": mscclpp.dumps(SCHEDULE), "topology": RING}),
    "io.mscclpp.load": (mscclpp.load, {"path": "/nowhere/to/read", "topology": RING}),
    "io.msccl.dumps": (
        msccl.dumps, {"program": PROGRAM, "dialect": "msccl", "max_bytes": 2**20}
    ),
    "io.msccl.loads": (msccl.loads, {"text": msccl.dumps(PROGRAM)}),
    "io.msccl.lift": (msccl.lift, {"program": PROGRAM, "topology": RING}),
    "io.msccl.load": (msccl.load, {"path": "/nowhere/to/read", "topology": RING, "max_bytes": 9}),
    "io.msccl.save": (
        msccl.save, {"schedule": SCHEDULE, "path": "/nowhere/to/write", "dialect": "msccl"}
    ),
    "tune.Table.load": (tune.Table.load, {"path": "/nowhere/to/read", "machine": None}),
    "tune.Table.save": (tune.Table().save, {"path": "/nowhere/to/write"}),
    # ------------------------------------------------------------------ compiled programs
    "aot.parse": (aot.parse, {"text": GPU}),
    "aot.summarize": (aot.summarize, {"compiled": None}),
    "aot.summarize_module": (aot.summarize_module, {"module": aot.parse(GPU)}),
    "aot.target": (aot.target, {"name": "v99:4x4", "wrap": None}),
    "aot.is_available": (aot.is_available, {"platform": "tpu"}),
    "aot.requirements": (lambda platform: aot.requirements(platform), {"platform": "tpu"}),
    "aot.compile_for": (
        aot.compile_for,
        {
            "mesh": MESH, "function": None, "arguments": (SHAPE,), "in_specs": (P("i"),),
            "out_specs": P("i"), "options": None, "check_vma": False,
        },
    ),
    # ------------------------------------------------------------------ training
    "plan_buckets": (
        functools.partial(plan_buckets, LEAVES), {"nbytes": 100, "leaf_order": "reverse"}
    ),
    "in_buckets": (
        functools.partial(in_buckets, tree=TREE),
        {"function": jnp.negative, "nbytes": 100, "leaf_order": "tree", "rows": None, "window": 0},
    ),
    "optax.all_reduce_gradients": (
        averaged,
        {**COMMON, "mean": True, "bucket_bytes": 100, "accum_dtype": None, "window": 2},
    ),
    "optax.error_feedback": (
        jc.optax.error_feedback,
        {
            **COMMON, "wire_dtype": "bfloat16", "mean": True, "bucket_bytes": 100, "window": 2,
            "mesh": MESH,
        },
    ),
    "optax.zero": (
        jc.optax.zero,
        {
            **COMMON, "inner": optax.sgd(0.1), "mean": True, "bucket_bytes": 100, "window": 2,
            "specs": P(), "mesh": MESH,
        },
    ),
    "optax.overlap": (
        jc.optax.overlap,
        {
            "layers": [jnp.dot], "loss": jnp.sum, "axis_name": "i", "mean": True,
            "bucket_bytes": 100,
        },
    ),
    "optax.state_specs": (jc.optax.state_specs, {"state": TREE, "axis_name": "i", "specs": P()}),
    "optax.reshard_zero": (
        functools.partial(jc.optax.reshard_zero, TREE, TREE),
        {"from_ranks": 2, "to_ranks": 4, "specs": P(), "mesh": MESH},
    ),
    # ------------------------------------------------------------------ tuning by measurement
    "tune.bucket_bytes": (tune.bucket_bytes, {"step_of": None, "sizes": (1000,), "rounds": 2}),
    "tune.jax_space": (tune.jax_space, {"task": TASK, "backend": "cpu", "of_jit": True}),
    "tune.tasks_of": (tune.tasks_of, {"step": lambda: None}),
    "tune.use": (
        lambda table, machine: tune.use(table, machine=machine).__enter__(),
        {"table": 5, "machine": None},
    ),
    "tune.offline": (
        tune.offline,
        {
            "mesh": MESH, "axis": "i", "collectives": ("none",), "sizes": (1024,), "table": None,
            "progress": None,
        },
    ),
    "tune.online": (
        tune.online,
        {
            "step": None, "space": None, "candidates": 4, "table": None, "seed": 0, "steps": 10,
            "watch_steps": 10, "profile": None,
        },
    ),
    "tune.replay": (tune.replay, {"step": None, "recording": None}),
}  # fmt: skip

# As meant, these are refused, so that no hostile value can have something read, written or run.
REFUSED = {
    *("io.load", "io.save", "io.open_compact", "io.multitree.load", "io.multitree.save"),
    *("io.msccl.load", "io.msccl.save", "tune.Table.load", "tune.Table.save"),
    *("use_topology", "explain_choice", "measure_execution", "trace_links", "probe"),
    *("aot.summarize", "aot.target", "aot.compile_for", "optax.reshard_zero"),
    *("tune.bucket_bytes", "tune.use", "tune.offline", "tune.online", "tune.replay"),
}
