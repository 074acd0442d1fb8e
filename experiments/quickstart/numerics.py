"""Does a schedule, run on devices, sum what ``lax.psum`` sums?"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

import jaxcoll as jc
from experiments.errors import CheckError
from jaxcoll import Schedule

AXIS = "rank"


@dataclasses.dataclass(frozen=True)
class NumericsCheck:
    """How a schedule's sums compare with ``lax.psum``'s.

    Attributes:
        ints_equal: whether every int32 is the same.
        float_error: largest |difference| / (n eps sum|x|) over all float32; at most 1 passes.
    """

    ints_equal: bool
    float_error: float

    def check(self, label: str) -> None:
        """Refuse sums that differ by more than the order of addition explains.

        Raises:
            CheckError: naming the schedule.
        """
        if not self.ints_equal:
            raise CheckError(f"{label}: integers differ from lax.psum; the schedule runs wrong")
        if not self.float_error <= 1.0:
            raise CheckError(
                f"{label}: floats differ from lax.psum by {self.float_error:.3g} times the "
                f"tolerance n eps sum|x|; the schedule runs wrong"
            )


def rank_mesh(num_ranks: int) -> Mesh:
    """A mesh of one axis, ``AXIS``, whose position is the rank.

    Raises:
        CheckError: there are fewer devices than ranks.
    """
    devices = jax.devices()
    if len(devices) < num_ranks:
        raise CheckError(
            f"{num_ranks} ranks need as many devices, JAX has {len(devices)}; set XLA_FLAGS="
            f"--xla_force_host_platform_device_count={num_ranks}"
        )
    return Mesh(np.array(devices[:num_ranks]), (AXIS,))


def compare_all(
    schedules: Iterable[Schedule], mesh: Mesh, elements: int, seed: int
) -> NumericsCheck:
    """The worst of some schedules' comparisons; see ``compare_with_psum``."""
    found = [compare_with_psum(schedule, mesh, elements, seed) for schedule in schedules]
    return NumericsCheck(all(c.ints_equal for c in found), max(c.float_error for c in found))


def compare_with_psum(schedule: Schedule, mesh: Mesh, elements: int, seed: int) -> NumericsCheck:
    """Sum the same random arrays, ``elements`` a rank, by the schedule and by ``lax.psum``."""
    n = mesh.size
    rng = np.random.default_rng(seed)
    ints = rng.integers(-(2**27), 2**27, (n, elements)).astype(np.int32)
    # Of all magnitudes, so that the order of addition shows.
    floats = rng.standard_normal((n, elements)) * np.exp(rng.standard_normal((n, elements)))
    floats = floats.astype(np.float32)

    def both(arrays):
        ours = [jc.psum(x, AXIS, schedule=schedule) for x in arrays]
        return ours, [jax.lax.psum(x, AXIS) for x in arrays]

    # By rank, so that all ranks' results are looked at.
    by_rank = PartitionSpec(AXIS)
    run = jax.jit(jax.shard_map(both, mesh=mesh, in_specs=by_rank, out_specs=by_rank))
    ours, theirs = jax.device_get(run((ints, floats)))
    ints_equal = np.array_equal(ours[0], theirs[0])
    difference = np.abs(ours[1].astype(np.float64) - theirs[1])
    tolerance = n * np.finfo(np.float32).eps * np.abs(floats).sum(axis=0, dtype=np.float64)
    return NumericsCheck(ints_equal, float((difference / tolerance).max()))
