"""Options of XLA's compilers that let a program run the permutes of its schedules well.

They must be given to the outermost ``jit`` (docs/targets.md explains why)::

    step = jax.jit(step, compiler_options=jc.compiler_options(mesh, schedule))
"""

from __future__ import annotations

import numpy as np
from jax.sharding import AbstractMesh, Mesh

from jaxcoll.device_kinds import backend_of
from jaxcoll.errors import CollectiveError, ScheduleError, TopologyError
from jaxcoll.execute.choice.cliques import check_cliques
from jaxcoll.execute.choice.transports import TRANSPORTS, check_transport
from jaxcoll.execute.lowerings.rounds import permute_program, split_long_steps
from jaxcoll.execute.lowerings.scan import stages
from jaxcoll.kinds import those
from jaxcoll.numerics import checks
from jaxcoll.schedule import Schedule
from jaxcoll.topology import Topology

# The default of XLA's TPU compiler; a lower limit would delay permutes of other code.
_TPU_IN_FLIGHT = 5

Options = dict[str, str | bool]

_NOT_COMBINED = "xla_gpu_collective_permute_combine_threshold_bytes"
_OVERLAP_LIMIT = "xla_gpu_experimental_parallel_collective_overlap_limit"
_CLIQUES = "xla_gpu_collective_permute_connected_components"
_APART = tuple(
    f"xla_gpu_{kind}_combine_threshold_bytes"
    for kind in sorted(those(lambda kind: kind.is_sharded))
)
_TPU_LIMIT = "xla_max_concurrent_async_collective_permutes"


def compiler_options(mesh: Mesh, *schedules: Schedule, transport: str | None = None) -> Options:
    """XLA's options for programs that run schedules on a mesh.

    Args:
        mesh: the devices that the program runs on; their platform decides.
        schedules: all schedules that may run at the same time; there are several if, for example,
            the gradients of several layers are in flight together. If omitted, one schedule is
            assumed that uses every link between the devices of the mesh.
        transport: how a configuration runs the permutes (``transports``). None stands for the
            transport of calls without a configuration, which is "links" on TPUs.

    Returns:
        The options for ``jax.jit(compiler_options=...)``; empty for CPU, whose compiler has none.

    Raises:
        TopologyError: the mesh has no devices, or a platform other than cpu, gpu and tpu.
        ScheduleError: an argument is not a ``Schedule``, or schedules deadlock with the transport
            "cliques".
        CollectiveError: the platform does not have the transport.
    """
    platform = _platform(mesh)
    if transport is not None and check_transport(transport) not in TRANSPORTS[platform]:
        known = ", ".join(TRANSPORTS[platform]) or "none"
        raise CollectiveError(
            f"a {platform} has no transport {transport!r}; its transports are {known}"
        )
    for schedule in schedules:
        if not isinstance(schedule, Schedule):
            raise ScheduleError(f"compiler_options takes schedules, got {checks.shown(schedule)}")
    if platform == "cpu":
        return {}
    if transport in ("combined", "xla"):
        return {}
    if transport == "apart":
        return dict.fromkeys(_APART, "0")
    if platform == "gpu":
        options: Options = {_NOT_COMBINED: "0"}
        if transport == "overlapped":
            # Permutes are not grouped here: XLA of jax 0.10.2 cannot compile programs with both.
            options[_OVERLAP_LIMIT] = str(max(1, sum(map(_rounds_at_once, schedules))))
        if transport == "cliques":
            check_cliques(schedules)
            options[_CLIQUES] = True
        return options
    # All rounds of a step should be in flight together: with a lower limit the last rounds would
    # start only after the first have ended.
    together = sum(map(_rounds_at_once, schedules))
    if not schedules:
        topology = Topology.from_mesh(mesh)
        ends = (np.bincount(end)[: topology.num_ranks] for end in (topology.src, topology.dst))
        together = max(int(degree.max(initial=0)) for degree in ends)
    return {_TPU_LIMIT: str(max(together, _TPU_IN_FLIGHT))}


def _platform(mesh: Mesh | AbstractMesh) -> str:
    devices = None if isinstance(mesh, AbstractMesh) else getattr(mesh, "devices", None)
    if not isinstance(devices, np.ndarray) or devices.size == 0:
        raise TopologyError(
            f"compiler_options needs a mesh with devices, got {checks.shown(mesh)}; an "
            "AbstractMesh does not say what it will run on"
        )
    name = str(devices.flat[0].platform)
    platform = backend_of(name)
    if platform not in ("cpu", "gpu", "tpu"):
        raise TopologyError(
            f"no options are known for devices of platform {name!r}, only for cpu, gpu and tpu; "
            "call jax.jit without compiler_options="
        )
    return platform


def _rounds_at_once(schedule: Schedule) -> int:
    """The largest number of permutes in one step, in whichever lowering has more."""
    program = split_long_steps(permute_program(schedule))
    straight = max((len(rounds) for rounds in program.steps), default=0)
    return max(straight, max((len(stage) for stage in stages(program)), default=0))
