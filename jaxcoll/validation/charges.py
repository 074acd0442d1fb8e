"""The charges of a machine's programs, fitted to published times of its permutes and all_to_alls.

In a step of a program, a rank sends to one other rank or to several. A step with one peer takes as
long as a permute (the geometric mean, if several patterns were measured), and a step with k peers
as long as an all_to_all among k + 1 ranks. Such a time has four parts: a start-up of the step, a
start-up of each message, the links by the data sheet, and a rest, which ``ExecutionCosts.delays``
holds as curves. These times contain no copies, so copies are charged at the memory's data sheet.
``jax.lax`` is charged a start-up and a time per byte: what its collectives among 8 ranks take
beyond the links.

Charges that are fitted without the rows that a seed draws show how well they predict those rows
(``predicted``). The library ships the charges that are fitted to all rows
(``simulation/charges.json``).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import numpy as np
from scipy.optimize import nnls

from jaxcoll.collective import Collective
from jaxcoll.kinds import KINDS
from jaxcoll.measured import PERMUTE, Curve, Machine, Table, curves_of, machine_of
from jaxcoll.measured.native import rising
from jaxcoll.simulation.execution_costs import (
    NATIVE_KINDS,
    ExecutionCosts,
    NativeCost,
    costs_of,
)
from jaxcoll.simulation.execution_order import STEPS
from jaxcoll.simulation.step_delays import Delay, seconds_of
from jaxcoll.synth.native import lax_seconds

# Bytes per second of a GPU's memory by its data sheet.
MEMORY = {
    "h100-host": 3.35e12, "b200-host": 8e12, "gb200-rack": 8e12, "gb300-rack": 8e12,
    "rubin-rack": 22e12, "mi300x-host": 5.3e12, "mi355x-host": 8e12,
}  # fmt: skip
# Passes over memory per byte that arrives: compiled programs show two copies and one addition, each
# of which reads and writes memory.
_COPIED, _ADDED = 4.0, 3.0
_NATIVE_RANKS = 8
_APART = 4  # the least ratio of the sizes of two successive rows that a curve keeps
_DIGITS = 4  # of a charge

# Tells which rows of a curve are held out of a fit: bool of shape (rows,).
Held = Callable[[Curve], np.ndarray]


def nothing_held(curve: Curve) -> np.ndarray:
    """No row of a curve."""
    return np.zeros(len(curve.ns), bool)


@dataclasses.dataclass(frozen=True)
class Steps:
    """Measured times of a step, by size.

    Attributes:
        peers: number of ranks that each rank sends to in the step.
        nbytes: bytes that a rank sends in the step, ascending, of shape (sizes,).
        seconds: the measured time of each size.
        curves: the curves that the times come from.
    """

    peers: int
    nbytes: np.ndarray
    seconds: np.ndarray
    curves: tuple[Curve, ...]


def fitted(name: str, held: Held = nothing_held) -> ExecutionCosts:
    """The charges of a machine of ``MEMORY``.

    Args:
        held: the rows of a curve that the fit may not see.
    """
    machine = machine_of(name)
    steps = [each for each in _steps(machine, held) if len(each.nbytes)]
    rest = {each.peers: each.seconds - _on_links(machine, each) for each in steps}
    least = {peers: float(seconds.min()) for peers, seconds in rest.items()}
    # The largest start-ups that no measured step beats. Both kinds of steps limit them, because on
    # hosts of MI300X a permute starts later than an all_to_all.
    slopes = [(took - least[1]) / (peers - 1) for peers, took in least.items() if peers > 1]
    permute = max(0.0, min(slopes))
    step = max(0.0, min(took - peers * permute for peers, took in least.items()))
    delays = [_delay(each, rest[each.peers] - step - each.peers * permute) for each in steps]
    memory = MEMORY[name]
    return ExecutionCosts(
        "gpu", permute=_rounded(permute), step=_rounded(step), copied=_rounded(_COPIED / memory),
        added=_rounded(_ADDED / memory), native=tuple(_natives(machine, held)), order=STEPS,
        source=f"fitted to published permutes and collectives of {name}; copies by data sheet",
        delays=tuple(delays),
    )  # fmt: skip


def _steps(machine: Machine, held: Held) -> Iterator[Steps]:
    """The steps of permutes, then of all_to_alls by ranks, without the rows that are held out."""
    permutes = [curve for _, curve in curves_of(machine.name, PERMUTE)]
    yield _together(1, permutes, held)
    exchanges: dict[int, list[Curve]] = {}
    for _, curve in curves_of(machine.name, "all_to_all"):
        if curve.dtype == "f32" and curve.ranks > 2:
            exchanges.setdefault(curve.ranks, []).append(curve)
    for ranks, curves in sorted(exchanges.items()):
        yield _together(ranks - 1, curves, held)


def _together(peers: int, curves: Sequence[Curve], held: Held) -> Steps:
    """One time per size: the geometric mean over the curves that have it."""
    logarithms: dict[int, list[float]] = {}
    for curve in curves:
        kept = ~held(curve)
        for nbytes, seconds in zip(curve.nbytes[kept], curve.seconds[kept], strict=True):
            logarithms.setdefault(int(nbytes), []).append(float(np.log(seconds)))
    sizes = np.asarray(sorted(logarithms), float)
    means = np.asarray([float(np.mean(logarithms[int(size)])) for size in sizes])
    return Steps(peers, sizes * _sent(peers), rising(sizes, np.exp(means)), tuple(curves))


def _sent(peers: int) -> float:
    """The share of its buffer that a rank sends in a step: one part of an all_to_all stays."""
    return 1.0 if peers == 1 else peers / (peers + 1)


def _on_links(machine: Machine, steps: Steps) -> np.ndarray:
    """Seconds that the links take by the data sheet.

    Behind a switch all messages of a rank share one link; on a mesh each has a link of its own.
    """
    network = machine.topology(_NATIVE_RANKS)
    alpha, bandwidth = float(network.alpha[0]), float(network.bandwidth[0])
    if network.num_vertices > network.num_ranks:
        return 2 * alpha + steps.nbytes / bandwidth
    return alpha + steps.nbytes / steps.peers / bandwidth


def _delay(steps: Steps, seconds: np.ndarray) -> Delay:
    """A curve through some of the rows: the first, the last, and those between that lie apart."""
    kept = [0]
    for i in range(1, len(steps.nbytes)):
        if steps.nbytes[i] >= _APART * steps.nbytes[kept[-1]] or i == len(steps.nbytes) - 1:
            kept.append(i)
    found = np.maximum(seconds[kept], 0.0)
    return Delay(
        steps.peers,
        tuple(_rounded(each) for each in steps.nbytes[kept]),
        tuple(_rounded(each) for each in found),
    )


def _natives(machine: Machine, held: Held) -> Iterator[NativeCost]:
    for kind in NATIVE_KINDS:
        rows = [
            (float(nbytes), float(seconds))
            for _, curve in curves_of(machine.name, kind)
            if curve.ranks == _NATIVE_RANKS and curve.dtype == "f32"
            for nbytes, seconds in zip(
                curve.nbytes[~held(curve)], curve.seconds[~held(curve)], strict=True
            )
        ]
        sizes, took = np.asarray(rows).T
        links = np.asarray([_of_lax(machine.name, kind, size) for size in sizes.tolist()])
        # Relative errors: rows are of seven powers of ten.
        left = np.column_stack([1 / took, sizes / took])
        (start, per_byte), _ = nnls(left, (took - links) / took)
        yield NativeCost(kind, _rounded(start), _rounded(per_byte))


@functools.cache
def _of_lax(machine: str, kind: str, nbytes: float) -> float:
    """Seconds on links of a collective of ``jax.lax`` among eight ranks."""
    network, what = machine_of(machine).topology(_NATIVE_RANKS), Collective(kind, _NATIVE_RANKS)
    return lax_seconds(network, what, nbytes, ExecutionCosts("gpu", 0, 0, 0, 0, order=STEPS))


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def priced(name: str, costs: ExecutionCosts) -> Iterator[tuple[Table, Curve, np.ndarray]]:
    """The curves of a machine that charges price, with the predicted seconds of their rows.

    Charges do not price rows in half precision, nor all_reduces that add in switches.
    """
    machine = machine_of(name)
    for table, curve in curves_of(name):
        if curve.dtype == "f32" and (found := predicted(machine, costs, curve)) is not None:
            yield table, curve, found


def _peers(curve: Curve) -> int:
    """The number of ranks that a rank sends to in the step of a curve; 0 if it is not one step."""
    if curve.collective == PERMUTE:
        return 1
    return curve.ranks - 1 if KINDS[curve.collective].is_pairwise and curve.ranks > 2 else 0


def predicted(machine: Machine, costs: ExecutionCosts, curve: Curve) -> np.ndarray | None:
    """Seconds of a curve's rows by charges; None for a curve that they do not price."""
    peers = _peers(curve)
    if peers:
        steps = Steps(peers, curve.nbytes * _sent(peers), curve.seconds, (curve,))
        start = costs.step + peers * costs.permute + _on_links(machine, steps)
        return start + seconds_of(np.full(len(curve.ns), peers), steps.nbytes, costs.delays)
    if curve.ranks != _NATIVE_RANKS or curve.collective not in NATIVE_KINDS:
        return None
    found = []
    for nbytes in curve.nbytes.tolist():
        links = _of_lax(machine.name, curve.collective, float(nbytes))
        found.append(links + (costs.native_seconds(curve.collective, nbytes, curve.ranks) or 0.0))
    return np.asarray(found)


# ---------------------------------------------------------------------- slices of TPUs

SLICES = ("tpu-v5p-8", "tpu-v6e-8", "tpu-v6e-256")


def of_slices() -> Iterator[tuple[Curve, np.ndarray]]:
    """The curves of slices of TPUs, and the seconds that the charges ``tpu`` predict of their rows.

    The charges of a permute were taken from these rows; those of collectives were fitted to none.
    """
    costs = cast("ExecutionCosts", costs_of("tpu"))
    for name in SLICES:
        network = machine_of(name).topology()
        for _, curve in curves_of(name):
            if curve.collective == PERMUTE:
                per_byte = 1 / float(network.bandwidth[0]) + costs.copied
                start = float(network.alpha[0]) + costs.step + costs.permute
                yield curve, start + per_byte * curve.nbytes
                continue
            what = Collective(curve.collective, curve.ranks)
            rows = [
                lax_seconds(network, what, nbytes, costs)
                + (costs.native_seconds(curve.collective, nbytes, curve.ranks) or 0.0)
                for nbytes in curve.nbytes.tolist()
            ]
            yield curve, np.asarray(rows)
