"""Why a call runs what it runs: the candidates, their predicted times, and which one is taken.

Calls of slices of unequal sizes (``largest=``) have candidates of their own (``unequal``); calls
over a wire (``wire_dtype=``) are collectives of the bytes that it sends (``execute.encoded``), two
for a sum that all ranks get.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxcoll.collective import Collective
from jaxcoll.devices import backend_of
from jaxcoll.errors import CollectiveError
from jaxcoll.execute.choice import in_force, stated
from jaxcoll.execute.choice.cheapest import Candidate, candidates, margin_of, taken
from jaxcoll.execute.choice.unequal import WITH_NATIVE, among, priced
from jaxcoll.execute.links import engine
from jaxcoll.execute.wires import Wire, wire_halves, wire_of
from jaxcoll.kinds import meant
from jaxcoll.mesh import axis_groups
from jaxcoll.numerics import checks
from jaxcoll.simulation.execution_costs import NATIVE_KINDS, ExecutionCosts, costs_of
from jaxcoll.topology import Topology

RAGGED = "ragged_all_to_all"
_MOST_LINES, _WIDTH = 24, 100


@dataclasses.dataclass(frozen=True, repr=False)
class Explanation:
    """The candidates for a call without ``schedule=``; prints in one screen.

    Attributes:
        collective: on the network, its groups those of the mesh axis.
        nbytes: bytes of the larger of a rank's input and output, as it is sent.
        topology: the network; ``None`` where it is unknown.
        costs: the machine's charges.
        candidates: priced, the fastest first; those that are not defined are last.
        chosen: the one that runs.
        has_table: whether a table of tuning is in use, which answers first.
        call: the first line, of a call that is more than its collective; empty for others.
        then: the second half of a sum over a wire, which gathers the sums.
        transport: what carries schedules between processes on CPUs, and why; empty elsewhere.
    """

    collective: Collective
    nbytes: int
    topology: Topology | None
    costs: ExecutionCosts
    candidates: tuple[Candidate, ...]
    chosen: Candidate
    has_table: bool
    call: str = ""
    then: Explanation | None = None
    transport: str = ""

    @property
    def seconds(self) -> float:
        """The predicted time of what runs, both halves where there are two."""
        return self.chosen.seconds + (0.0 if self.then is None else self.then.seconds)

    def reason(self) -> str:
        """Why ``chosen`` runs, in a sentence."""
        best = self.candidates[0]
        if not self.chosen.is_native:
            native = [each for each in self.candidates if each.is_native]
            if not native:
                return f"{self.chosen.name}: jax.lax has no {self.collective.kind} of its own"
            share = self.chosen.seconds / native[0].seconds
            return f"{self.chosen.name}: predicted to take {share:.0%} of the time of jax.lax"
        if best.is_native:
            unknown = ", where only the machine's charges count" if self.topology is None else ""
            return f"jax.lax: no schedule is predicted to be faster{unknown}"
        share = best.seconds / self.chosen.seconds
        return (
            f"jax.lax: {best.name} is predicted to take {share:.0%} of its time; a schedule runs "
            f"below {margin_of(self.costs, self.topology):.0%}"
        )

    def __repr__(self) -> str:
        kind, most = self.collective.kind, len(self.candidates)
        return f"Explanation({kind}, {self.nbytes} B, {most} candidates, runs {self.chosen.name})"

    def __str__(self) -> str:
        size, count = len(self.collective.groups[0]), len(self.collective.groups)
        groups = f", {count} groups at once" if count > 1 else ""
        network = "unknown (state it: jc.use_topology)" if self.topology is None else self.topology
        head = [
            *([self.call] if self.call else []),
            f"{self.collective.kind} of {self.nbytes:,} B on {size} ranks{groups}",
            f"network: {network}",
            f"times: {self.costs.said}",
            f"charges: {self.costs.backend}, {self.costs.source or 'no source given'}",
        ]
        if self.transport:
            head.append(f"schedules go over {self.transport}")
        if self.has_table:
            head.append("a table of tuning is in use: where it has the task, its answer runs")
        rows = [f"{'candidate':38}{'predicted':>13}{'links':>14}{'machine':>14}{'permutes':>9}"]
        tail = ["", f"runs {self.reason()}"]
        defined = [each for each in self.candidates if math.isfinite(each.seconds)]
        room = _MOST_LINES - len(head) - len(rows) - len(tail) - 3
        rows += [self._row(each) for each in defined[:room]]
        if len(defined) > room:
            rows.append(f"... {len(defined) - room} slower ones")
        names = [each.label.partition("(")[0] for each in self.candidates if each not in defined]
        if names:
            rows.append(f"not defined here: {', '.join(dict.fromkeys(names))}")
        text = "\n".join(_cut(line) for line in [*head, "", *rows, *tail])
        return text if self.then is None else f"{text}\n\n{self.then}"

    def _row(self, each: Candidate) -> str:
        times = (each.seconds, each.links, each.charge)
        mark = " <- runs" if each is self.chosen else ""
        columns = " ".join(f"{_in_unit(seconds):>13}" for seconds in times)
        return f"{each.name:38}{columns}{each.rounds or '-':>9}{mark}"


def _in_unit(seconds: float) -> str:
    return f"{1e6 * seconds:,.1f} us" if seconds < 1 else f"{seconds:,.3f} s"


def explain_choice(
    collective: str,
    *,
    nbytes: float,
    mesh: Mesh | None = None,
    axis_name: str | Sequence[str] | None = None,
    topology: Topology | None = None,
    execution: ExecutionCosts | str | None = None,
    largest=None,
    wire_dtype=None,
    dtype="float32",
) -> Explanation:
    """Explain what a call without ``schedule=`` would run, and why; print the result::

        print(jc.explain_choice("psum", nbytes=25e6, mesh=mesh))

    Without a mesh, for a machine that you do not have::

        hosts = jc.topologies.dgx_h100(2)
        print(jc.explain_choice("psum", nbytes=25e6, topology=hosts, execution="gpu"))

    Slices of unequal sizes, and fewer bytes::

        print(jc.explain_choice("ragged_all_to_all", nbytes=64e6, largest=tokens, mesh=mesh))
        print(jc.explain_choice("psum", nbytes=25e6, wire_dtype="float8_e4m3fn", mesh=mesh))

    Args:
        collective: a kind, such as "all_reduce", or a function of ``jc``, such as "psum".
        nbytes: bytes of the larger of a rank's input and output. For "ragged_all_to_all", bytes of
            the rows that the fullest rank sends to others, or gets, as ``largest`` bounds them.
        mesh: the mesh whose devices run the call; when omitted, all ranks of ``topology`` on the
            machine of ``execution``.
        axis_name: the axes of the call; all when omitted.
        topology, execution: as for ``jc.use_topology``, whose values are taken when omitted.
        largest: as for ``jc.ragged_all_to_all``: integers of shape (size, size), from source to
            destination, by place in the group. Required for that collective only.
        wire_dtype: as for ``jc.psum``; for "psum", the exchange and then the gather are explained.
        dtype: the dtype of the operand, whose elements a wire sends.

    Raises:
        CollectiveError: an unknown collective or axis, one with a root, nbytes not above 0, a
            topology or costs that do not fit the mesh, or none of these and no mesh; a ``largest``
            that is negative, of another shape or empty; unequal slices on an unknown network; a
            wire for a collective that takes none.
    """
    checks.optional(mesh, checks.instance, Mesh, "mesh", CollectiveError)
    kind = _kind_of(collective, largest, wire_dtype)
    size = max(1, round(float(checks.positive(nbytes, "nbytes", CollectiveError))))
    checks.optional(topology, checks.instance, Topology, "topology", CollectiveError)
    if mesh is None:
        where = _elsewhere(axis_name, topology, execution)
    else:
        where = _on_mesh(mesh, axis_name, topology, execution)
    if largest is not None:
        return _explained_ragged(size, where, largest)
    if wire_dtype is not None:
        return _explained_wire(kind, size, where, wire_of(wire_dtype), dtype)
    return _explained(kind, size, where)


def _kind_of(collective: str, largest: object, wire_dtype: object) -> str:
    """The kind of collective that a call is explained as."""
    is_ragged = isinstance(collective, str) and collective == RAGGED
    named = meant(collective) if isinstance(collective, str) else None
    kind = "all_to_all" if is_ragged else collective if named is None else named.name
    checks.choice(kind, NATIVE_KINDS, "collective", CollectiveError)
    if is_ragged != (largest is not None) or (is_ragged and wire_dtype is not None):
        raise CollectiveError(
            f"largest= goes with {RAGGED!r} alone, which needs it and takes no wire_dtype=; "
            f"got {checks.shown(collective)}"
        )
    return kind


@dataclasses.dataclass(frozen=True)
class _Where:
    """The machine on which a call is explained.

    Attributes:
        groups: groups of its ranks; ``None`` for one of all ranks of the network.
        network: ``None`` where it is unknown.
        several: whether ranks of a group differ along several axes.
        transport: as in ``Explanation``.
    """

    groups: tuple[tuple[int, ...], ...] | None
    network: Topology | None
    costs: ExecutionCosts
    several: bool
    backend: str
    transport: str = ""

    def collective(self, kind: str) -> Collective:
        """A collective of these groups."""
        if self.groups is None and self.network is not None:
            return Collective(kind, self.network.num_ranks)  # type: ignore[arg-type]
        groups = self.groups or ()
        return Collective(kind, sum(map(len, groups)), 1, groups)  # type: ignore[arg-type]


def _on_mesh(
    mesh: Mesh,
    axis_name: str | Sequence[str] | None,
    topology: Topology | None,
    execution: ExecutionCosts | str | None,
) -> _Where:
    names = mesh.axis_names if axis_name is None else axis_name
    said, devices = stated.current(), list(mesh.devices.flat)
    platform = devices[0].platform
    network = said.topology if topology is None else topology
    # Only for numbers that the player adds, on a mesh whose axes are all manual.
    given = costs_of(execution, CollectiveError) or said.execution
    costs = stated.costs_for(given, platform, network, stated.has_links())
    if network is None and platform != "cpu":
        network = stated.of_mesh(mesh)
    groups = axis_groups(mesh, names)
    ranks = len(groups[0])
    # A network of the axes alone sees one group, as in ``stated.place``.
    if network is not None and network.num_ranks != len(devices):
        if network.num_ranks != ranks:
            raise CollectiveError(
                f"{network} has {network.num_ranks} ranks, the axes {ranks} and the mesh "
                f"{len(devices)} devices; state one of the axes or of the mesh"
            )
        groups = (tuple(range(ranks)),)
    several = not isinstance(names, str) and len(names) > 1
    transport = str(engine.described()) if platform == "cpu" and stated.has_links() else ""
    return _Where(groups, network, costs, several, backend_of(platform), transport)


def _elsewhere(
    axis_name: object, topology: Topology | None, execution: ExecutionCosts | str | None
) -> _Where:
    """A machine whose devices are not here."""
    said = stated.current()
    network = said.topology if topology is None else topology
    costs = costs_of(execution, CollectiveError) or said.execution
    if network is None or costs is None or axis_name is not None:
        wrong = "mesh= is left out"
        wrong += ", of which axis_name= would be" if axis_name is not None else ""
        raise CollectiveError(
            f"{wrong}; give it, or both topology= and execution= of a machine that is not here, as "
            "in topology=jc.topologies.dgx_h100(2), execution='gpu'"
        )
    return _Where(None, network, costs, False, costs.backend)


def _explained(kind: str, nbytes: int, where: _Where, call: str = "", then=None) -> Explanation:
    what = where.collective(kind)
    found = candidates(what, nbytes, where.network, where.costs, where.several)
    return _ranked(what, nbytes, where, found, call, then)


def _ranked(
    what: Collective,
    nbytes: int,
    where: _Where,
    found: Sequence[Candidate],
    call: str = "",
    then: Explanation | None = None,
) -> Explanation:
    ranked = tuple(sorted(found, key=lambda each: each.seconds))
    in_use = in_force.current() is not None
    run = taken(found, margin=margin_of(where.costs, where.network))
    return Explanation(
        what, nbytes, where.network, where.costs, ranked, run, in_use, call, then, where.transport
    )


def _explained_wire(kind: str, nbytes: int, where: _Where, wire: Wire, dtype: Any) -> Explanation:
    """The collectives of the bytes of a wire that a call is made of."""
    halves = wire_halves(kind)
    if not halves:
        raise CollectiveError(
            f"{kind} takes no wire_dtype=; psum, pmean, psum_scatter, all_gather and all_to_all do"
        )
    ranks = len(where.collective(kind).groups[0])
    try:
        kept = None if dtype is None else jnp.dtype(dtype)
    except TypeError:
        kept = None
    if kept is None or not jnp.issubdtype(kept, jnp.floating):
        raise CollectiveError(f"dtype must be a dtype of floats, got {checks.shown(dtype)}")
    elements = -(-nbytes // kept.itemsize)
    sent = ranks * wire.nbytes(-(-elements // ranks), kept)
    said = f"{kind} of {nbytes:,} B, of which {sent:,} B are sent"
    then = None
    for number, half in reversed([*enumerate(halves)]):
        then = _explained(half, sent, where, "" if number else said, then)
    return then  # type: ignore[return-value]


def _explained_ragged(nbytes: int, where: _Where, largest: object) -> Explanation:
    """The ways to exchange slices of unequal sizes."""
    what = where.collective("all_to_all")
    size = len(what.groups[0])
    is_known = isinstance(largest, (np.ndarray, list, tuple))
    rows = np.array(largest, object) if is_known else np.array("")
    if rows.dtype == object and all(isinstance(n, (int, np.integer)) for n in rows.flat):
        rows = np.asarray(largest)
    if rows.dtype.kind not in "iu" or rows.shape != (size, size) or rows.min() < 0:
        raise CollectiveError(
            f"largest must be a matrix of {size} x {size} integers of at least 0, the rows "
            f"of every pair of ranks of a group; got {checks.shown(largest)}"
        )
    others = rows[~np.eye(size, dtype=bool)]
    if not others.any():
        raise CollectiveError("largest has no rows for other ranks, so nothing would be sent")
    call = f"{RAGGED} of up to {nbytes:,} B, {np.count_nonzero(others)} of {others.size} pairs"
    between = np.where(np.eye(size, dtype=bool), 0, rows).astype(np.int64)
    fullest = int(max(between.sum(0).max(), between.sum(1).max()))
    padded = -(-nbytes * size * int(others.max()) // fullest)
    if (others == others[0]).all():
        return _explained("all_to_all", padded, where, f"{call}, of equal size")
    if where.network is None:
        raise CollectiveError(
            "unequal slices are priced on a network, and none is known: give topology=. Without "
            "one, ranks send them to each other directly, or padded where that is fewer bytes"
        )
    # XLA for CPUs has no exchange of unequal slices.
    native = nbytes if where.backend in WITH_NATIVE else padded
    pairs = among(what.groups, between // np.gcd.reduce(between, axis=None))
    found = priced(what, where.network, where.costs, pairs, nbytes, native)
    if native != nbytes:
        call += f"; jax.lax pads them to {padded:,} B"
    return _ranked(what, nbytes, where, found, call)


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."
