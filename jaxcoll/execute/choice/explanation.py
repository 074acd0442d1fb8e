"""The explanation of a choice: the candidates for a call, their predicted times, and the reason."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from jax.sharding import Mesh

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.execute.choice import in_force, stated
from jaxcoll.execute.choice.cheapest import (
    Candidate,
    candidates,
    margin_of,
    taken,
)
from jaxcoll.kinds import meant
from jaxcoll.mesh import axis_groups
from jaxcoll.numerics import checks
from jaxcoll.simulation.execution_costs import (
    NATIVE_KINDS,
    ExecutionCosts,
    costs_of,
)
from jaxcoll.topology import Topology

_MOST_LINES, _WIDTH = 24, 100


@dataclasses.dataclass(frozen=True, repr=False)
class Explanation:
    """The candidates for a call without ``schedule=``; prints in one screen.

    Attributes:
        collective: the collective on the network, whose groups are those of the mesh axis.
        nbytes: bytes of the larger of a rank's input and output.
        topology: the network; ``None`` if it is unknown.
        costs: the machine's charges.
        candidates: the candidates with prices, the fastest first; undefined ones are last.
        chosen: the candidate that runs.
        has_table: whether a table of tuning is in use, which comes before this choice.
    """

    collective: Collective
    nbytes: int
    topology: Topology | None
    costs: ExecutionCosts
    candidates: tuple[Candidate, ...]
    chosen: Candidate
    has_table: bool

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
            f"{self.collective.kind} of {self.nbytes:,} B on {size} ranks{groups}",
            f"network: {network}",
            f"times: {self.costs.said}",
            f"charges: {self.costs.backend}, {self.costs.source or 'no source given'}",
        ]
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
        return "\n".join(_cut(line) for line in [*head, "", *rows, *tail])

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
) -> Explanation:
    """Explain what a call without ``schedule=`` would run, and why; print the result::

        print(jc.explain_choice("psum", nbytes=25e6, mesh=mesh))

    Without a mesh, it explains the choice for a machine that you do not have::

        hosts = jc.topologies.dgx_h100(2)
        print(jc.explain_choice("psum", nbytes=25e6, topology=hosts, execution="gpu"))

    Args:
        collective: a kind, such as "all_reduce", or a function of ``jc``, such as "psum".
        nbytes: bytes of the larger of a rank's input and output.
        mesh: the mesh whose devices run the call; when omitted, all ranks of ``topology`` on the
            machine of ``execution``.
        axis_name: the axes of the call; all when omitted.
        topology, execution: as for ``jc.use_topology``, whose values are taken when omitted.

    Raises:
        CollectiveError: the collective or axis is unknown or has a root, nbytes is not above 0, or
            the topology or costs do not fit the mesh, or are missing without one.
    """
    checks.optional(mesh, checks.instance, Mesh, "mesh", CollectiveError)
    named = meant(collective) if isinstance(collective, str) else None
    kind = collective if named is None else named.name
    checks.choice(kind, NATIVE_KINDS, "collective", CollectiveError)
    size = max(1, round(float(checks.positive(nbytes, "nbytes", CollectiveError))))
    checks.optional(topology, checks.instance, Topology, "topology", CollectiveError)
    if mesh is None:
        return _explained_elsewhere(kind, size, axis_name, topology, execution)
    names = mesh.axis_names if axis_name is None else axis_name
    said, devices = stated.current(), list(mesh.devices.flat)
    platform = devices[0].platform
    network = said.topology if topology is None else topology
    # Prices are for numbers that the player adds, on a mesh whose axes are all manual.
    given = costs_of(execution, CollectiveError) or said.execution
    costs = stated.costs_for(given, platform, network, stated.has_links())
    if network is None and platform != "cpu":
        network = stated.of_mesh(mesh)
    groups = axis_groups(mesh, names)
    ranks = len(groups[0])
    # A network of the axes alone has one group, as in ``stated.place``.
    if network is not None and network.num_ranks != len(devices):
        if network.num_ranks != ranks:
            raise CollectiveError(
                f"{network} has {network.num_ranks} ranks, the axes {ranks} and the mesh "
                f"{len(devices)} devices; state one of the axes or of the mesh"
            )
        groups = (tuple(range(ranks)),)
    what = Collective(kind, sum(map(len, groups)), 1, groups)  # type: ignore[arg-type]
    several = not isinstance(names, str) and len(names) > 1
    return _explained(what, size, network, costs, several)


def _explained_elsewhere(
    kind: str,
    nbytes: int,
    axis_name: object,
    topology: Topology | None,
    execution: ExecutionCosts | str | None,
) -> Explanation:
    """The explanation for a machine whose devices are not present."""
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
    what = Collective(kind, network.num_ranks)  # type: ignore[arg-type]
    return _explained(what, nbytes, network, costs, False)


def _explained(
    what: Collective,
    nbytes: int,
    network: Topology | None,
    costs: ExecutionCosts,
    several: bool,
) -> Explanation:
    found = candidates(what, nbytes, network, costs, several)
    ranked = tuple(sorted(found, key=lambda each: each.seconds))
    in_use = in_force.current() is not None
    run = taken(found, margin=margin_of(costs, network))
    return Explanation(what, nbytes, network, costs, ranked, run, in_use)


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."
