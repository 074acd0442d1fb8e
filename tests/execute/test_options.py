"""Compiler options: which platform gets which, and refusals."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh

import jaxcoll as jc
from jaxcoll import Collective, synthesize, topologies
from jaxcoll.errors import CollectiveError, ScheduleError, TopologyError
from tests.execute.harness import mesh_of, schedule_of

IN_FLIGHT = "xla_max_concurrent_async_collective_permutes"
COMBINE = "xla_gpu_collective_permute_combine_threshold_bytes"


def mesh_on(platform: str, n: int = 8) -> Any:
    """All of a mesh that is looked at."""
    kind = {"tpu": "TPU v4", "cuda": "NVIDIA H100"}.get(platform, "")
    devices = [
        SimpleNamespace(
            platform=platform,
            device_kind=kind,
            process_index=0,
            coords=tuple(int(c) for c in np.unravel_index(i, (2, 2, 2))),
            core_on_chip=0,
        )
        for i in range(n)
    ]
    return SimpleNamespace(devices=np.asarray(devices, object))


def test_nothing_for_cpu():
    schedule = schedule_of("torus", 8, "all_gather", "bucket")
    assert jc.compiler_options(mesh_of(8), schedule) == {}
    assert jax.jit(lambda x: x + 1, compiler_options=jc.compiler_options(mesh_of(8)))(1) == 2


def test_tpu_allows_as_many_permutes_as_a_step_has():
    direct = schedule_of("complete", 8, "all_gather", "direct")
    ring = schedule_of("ring", 8, "all_gather", "ring")
    tpu = mesh_on("tpu")
    assert jc.compiler_options(tpu, direct) == {IN_FLIGHT: "7"}
    assert jc.compiler_options(tpu, ring) == {IN_FLIGHT: "5"}  # XLA's own, never less
    assert jc.compiler_options(tpu, direct, ring) == {IN_FLIGHT: "9"}
    assert jc.compiler_options(tpu) == {IN_FLIGHT: "5"}  # three links per device


def test_tpu_counts_the_slots_of_scan():
    # In one step a rank uses few of its links, over all steps all of them.
    topology = topologies.torus(4, 4, 4)
    schedule = jc.synthesize(topology, Collective("all_gather", 64), "tacos")
    assert jc.compiler_options(mesh_on("tpu"), schedule) == {IN_FLIGHT: "6"}


@pytest.mark.parametrize("platform", ["cuda", "rocm", "gpu"])
def test_gpu(platform):
    direct = schedule_of("complete", 8, "all_gather", "direct")
    assert jc.compiler_options(mesh_on(platform), direct) == {COMBINE: "0"}
    assert jc.compiler_options(mesh_on(platform)) == {COMBINE: "0"}


def test_refusals():
    with pytest.raises(TopologyError, match="needs a mesh with devices"):
        jc.compiler_options(AbstractMesh((8,), ("i",)))  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="platform 'metal'"):
        jc.compiler_options(mesh_on("metal"))
    with pytest.raises(ScheduleError, match="takes schedules, got 'ring'"):
        jc.compiler_options(mesh_of(8), "ring")  # type: ignore[arg-type]
    assert isinstance(mesh_of(8), Mesh)


# ---------------------------------------------------------------------- transports


LIMIT = "xla_gpu_experimental_parallel_collective_overlap_limit"
CLIQUES = "xla_gpu_collective_permute_connected_components"


def test_options_by_transport():
    gpu, tpu = mesh_on("cuda"), mesh_on("tpu")
    schedule = schedule_of("torus", 8, "all_gather", "bucket")

    def options(mesh, transport, *schedules):
        return jc.compiler_options(mesh, *schedules, transport=transport)

    assert options(gpu, "groups", schedule) == options(gpu, None, schedule) == {COMBINE: "0"}
    assert options(gpu, "combined", schedule) == options(tpu, "xla", schedule) == {}
    once = int(options(gpu, "overlapped", schedule)[LIMIT])
    assert options(gpu, "overlapped", schedule, schedule) == {COMBINE: "0", LIMIT: str(2 * once)}
    assert options(gpu, "cliques", schedule) == {COMBINE: "0", CLIQUES: True}
    assert len(options(gpu, "apart")) == 3
    assert set(options(gpu, "apart").values()) == {"0"}
    assert options(tpu, "links", schedule) == options(tpu, None, schedule) != {}


@pytest.mark.parametrize(
    ("platform", "transport"), [("cpu", "groups"), ("tpu", "cliques"), ("cuda", "links")]
)
def test_a_transport_of_another_platform(platform, transport):
    with pytest.raises(CollectiveError, match="has no transport"):
        jc.compiler_options(mesh_on(platform), transport=transport)


def test_cliques_that_deadlock_get_no_options():
    line = synthesize(topologies.mesh(4), Collective("broadcast", 4, root=0), "tacos")
    with pytest.raises(ScheduleError, match="44530"):
        jc.compiler_options(mesh_on("cuda"), line, transport="cliques")
