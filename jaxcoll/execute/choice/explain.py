"""Why a call without ``schedule=`` runs as it does: its candidates and their predicted times."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from jax.sharding import Mesh

from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.execute.choice import active, stated
from jaxcoll.execute.choice.cheapest import MARGIN, Candidate, candidates, taken
from jaxcoll.mesh import axis_groups
from jaxcoll.numerics import checks
from jaxcoll.simulation.execution_costs import NATIVE_KINDS, ExecutionCosts, costs_of
from jaxcoll.topology import Topology

_MOST_LINES, _WIDTH = 24, 100
_FUNCTIONS = {
    "psum": "all_reduce",
    "pmean": "all_reduce",
    "psum_scatter": "reduce_scatter",
}


@dataclasses.dataclass(frozen=True, repr=False)
class Explanation:
    """The candidates for a call without ``schedule=``; prints in one screen.

    Attributes:
        collective: on the network, its groups those of the mesh axis.
        nbytes: of the larger of a rank's input and output.
        topology: the network; ``None`` where it is unknown.
        costs: the machine's charges.
        candidates: priced, the fastest first; those that are not defined are last.
        chosen: the one that runs.
        has_table: whether a table of tuning is in use, which answers first.
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
        if self.chosen.name != "jax.lax":
            native = [each for each in self.candidates if each.name == "jax.lax"]
            if not native:
                return f"{self.chosen.name}: jax.lax has no {self.collective.kind} of its own"
            share = self.chosen.seconds / native[0].seconds
            return f"{self.chosen.name}: predicted to take {share:.0%} of the time of jax.lax"
        if best.name == "jax.lax":
            unknown = ", where only the machine's charges count" if self.topology is None else ""
            return f"jax.lax: no schedule is predicted to be faster{unknown}"
        share = best.seconds / self.chosen.seconds
        return (
            f"jax.lax: {best.name} is predicted to take {share:.0%} of its time; a schedule runs "
            f"below {MARGIN:.0%}"
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
            f"charges: {self.costs.backend}, {self.costs.source or 'no source given'}",
        ]
        if self.has_table:
            head.append("a table of tuning is in use: where it has the task, its answer runs")
        rows = [f"{'candidate':30}{'predicted':>13}{'links':>13}{'machine':>13}{'permutes':>10}"]
        tail = ["", f"runs {self.reason()}"]
        defined = [each for each in self.candidates if math.isfinite(each.seconds)]
        room = _MOST_LINES - len(head) - len(rows) - len(tail) - 3
        rows += [self._row(each) for each in defined[:room]]
        if len(defined) > room:
            rows.append(f"... {len(defined) - room} slower ones")
        names = [each.name.partition(",")[0] for each in self.candidates if each not in defined]
        if names:
            rows.append(f"not defined here: {', '.join(dict.fromkeys(names))}")
        return "\n".join(_cut(line) for line in [*head, "", *rows, *tail])

    def _row(self, each: Candidate) -> str:
        times = (each.seconds, each.links, each.charge)
        mark = " <- runs" if each is self.chosen else ""
        columns = "".join(f"{_us(seconds):>13}" for seconds in times)
        return f"{each.name:30}{columns}{each.rounds or '-':>10}{mark}"


def explain_choice(
    collective: str,
    *,
    nbytes: float,
    mesh: Mesh,
    axis_name: str | Sequence[str] | None = None,
    topology: Topology | None = None,
    execution: ExecutionCosts | str | None = None,
) -> Explanation:
    """How a call without ``schedule=`` is decided; print it::

        print(jc.explain_choice("psum", nbytes=25e6, mesh=mesh))

    Args:
        collective: a kind, as "all_reduce", or a function of ``jc``, as "psum".
        nbytes: bytes of the larger of a rank's input and output.
        mesh: whose devices run it.
        axis_name: its axes; all when omitted.
        topology, execution: as for ``jc.use_topology``, which is asked where they are omitted.

    Raises:
        CollectiveError: an unknown collective or axis, one with a root, nbytes not above 0, or a
            topology or costs that do not fit the mesh.
    """
    checks.instance(mesh, Mesh, "mesh", CollectiveError)
    kind = _FUNCTIONS.get(collective, collective) if isinstance(collective, str) else collective
    checks.choice(kind, NATIVE_KINDS, "collective", CollectiveError)
    size = max(1, round(float(checks.positive(nbytes, "nbytes", CollectiveError))))
    checks.optional(topology, checks.instance, Topology, "topology", CollectiveError)
    names = mesh.axis_names if axis_name is None else axis_name
    said, devices = stated.current(), list(mesh.devices.flat)
    platform = devices[0].platform
    given = costs_of(execution, CollectiveError)
    costs = stated.costs_for(said.execution if given is None else given, platform)
    network = said.topology if topology is None else topology
    if network is None and platform != "cpu":
        network = stated.of_mesh(mesh)
    groups = axis_groups(mesh, names)
    ranks = len(groups[0])
    if network is not None and network.num_ranks != len(devices):
        if network.num_ranks != ranks:
            raise CollectiveError(
                f"{network} has {network.num_ranks} ranks, the axes {ranks} and the mesh "
                f"{len(devices)} devices; state one of the axes or of the mesh"
            )
        groups = (tuple(range(ranks)),)
    what = Collective(kind, sum(map(len, groups)), 1, groups)  # type: ignore[arg-type]
    several = not isinstance(names, str) and len(names) > 1
    found = candidates(what, size, network, costs, several)
    ranked = tuple(sorted(found, key=lambda each: each.seconds))
    in_use = active.current() is not None
    return Explanation(what, size, network, costs, ranked, taken(found), in_use)


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:,.1f} us"


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."
