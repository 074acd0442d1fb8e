"""Settings of the comparing studies: networks, algorithms, sizes, and the paper's numbers."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

from experiments.config import IDEAL, PaperValue, StudyConfig, at_least, one_of
from experiments.errors import ConfigError
from experiments.study import Row
from experiments.tacos.measure import AlgorithmConfig, NetworkConfig, Run, format_size, measure
from jaxcoll.simulation import MODELS
from jaxcoll.synth import Tacos


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperMean(PaperValue):
    """A mean that the paper prints.

    Attributes:
        of: the algorithm it is about.
        over: another algorithm, whose time is divided by that of the first; or "ideal", for the
            paper's Ideal in percent of the time.
        networks: that the mean is over; all where empty.
        sizes: bytes, likewise.
    """

    of: str
    over: str
    networks: tuple[str, ...]
    sizes: tuple[int, ...]

    def row(self, runs: Sequence[Run]) -> Row:
        """Our mean beside the paper's; empty where we have no such run."""
        column = "% of ideal" if self.over == IDEAL else "times as fast"
        ours = self._ours(runs)
        sizes = list(dict.fromkeys(nbytes for _, nbytes in ours)) or self.sizes
        return {
            "network": ", ".join(self.networks) or "mean",
            "size": ", ".join(map(format_size, sizes)) if self.sizes else "all",
            "algorithm": self.of if self.over == IDEAL else f"{self.of} over {self.over}",
            **self.beside(statistics.fmean(ours.values()) if ours else None, column),
        }

    def _ours(self, runs: Sequence[Run]) -> dict[tuple[str, int], float]:
        """The values that the mean is taken over, by network and bytes."""
        of, over = (
            {
                (run.network, run.nbytes): run
                for run in runs
                if run.algorithm == name
                and (not self.networks or run.network in self.networks)
                and (not self.sizes or run.nbytes in self.sizes)
            }
            for name in (self.of, self.over)
        )
        if self.over == IDEAL:
            return {case: run.of_ideal for case, run in of.items()}
        return {case: over[case].time / run.time for case, run in of.items() if case in over}


def overtaken(runs: Sequence[Run], ours: str = "tacos") -> list[str]:
    """A line for each case in which another algorithm, auto aside, is over 0.1 % faster."""
    time = {(run.network, run.nbytes): run.time for run in runs if run.algorithm == ours}
    return [
        f"{run.network}, {format_size(run.nbytes)}: {run.algorithm} takes "
        f"{run.time / time[run.network, run.nbytes]:.3f} of the time of {ours}"
        for run in runs
        if (run.network, run.nbytes) in time
        and run.time < time[run.network, run.nbytes] * 0.999
        and not run.chosen
    ]


def out_of_reach(runs: Sequence[Run]) -> list[str]:
    """A line for each network whose worst cut keeps all that go in two phases from Ideal."""
    most = {run.network: 100 * run.ideal / run.cuts for run in runs}
    return [
        f"{network}: a reduce-scatter and an all-gather through the worst cut reach {share:.1f} % "
        f"of Ideal at most"
        for network, share in most.items()
        if share < 98
    ]


# ---------------------------------------------------------------------- what is compared


ATTEMPTS = 16  # of Tacos(), at least; see its ``attempts``


@dataclasses.dataclass(frozen=True)
class Comparison(StudyConfig):
    """All-reduces of several algorithms on several networks.

    Attributes:
        title: the figure of the paper.
        networks: by name.
        algorithms: by name.
        nbytes: bytes of a rank's buffer.
        link_model: "astra" or "tacos" (see ``jaxcoll.simulation``).
        claims: the numbers that the paper prints.
        seed: of everything random.
    """

    title: str
    networks: Mapping[str, NetworkConfig]
    algorithms: Mapping[str, AlgorithmConfig]
    nbytes: tuple[int, ...]
    link_model: str
    claims: tuple[PaperMean, ...]
    seed: int

    def __post_init__(self) -> None:
        one_of("link_model", self.link_model, MODELS)
        at_least("seed", self.seed, 0)
        if not self.networks or not self.algorithms:
            raise ConfigError("a comparison needs networks and algorithms")
        if not self.nbytes or min(self.nbytes) < 1 or sorted(set(self.nbytes)) != [*self.nbytes]:
            raise ConfigError(f"nbytes must be rising and at least 1, got {self.nbytes}")
        for claim in self.claims:
            unknown = {claim.of, claim.over} - {*self.algorithms, IDEAL}
            unknown |= {*claim.networks} - {*self.networks}
            if unknown:
                raise ConfigError(f"a claim names {min(unknown)!r}, which is not compared here")

    def measure(self) -> tuple[list[Run], list[str]]:
        """The runs, and a line for each algorithm that is not defined on a network."""
        return measure(self.networks, self.algorithms, self.nbytes, self.link_model, self.seed)

    def footnotes(self) -> list[str]:
        """The notes below every table."""
        return footnotes_of(self.link_model, self.size, self.algorithms)


def footnotes_of(
    link_model: str, size: str, algorithms: Mapping[str, AlgorithmConfig]
) -> list[str]:
    """Remarks on the setting: the link model, which TACOS is meant, whether the run is small."""
    found = [f"Link model {link_model}."]
    if "tacos random" in algorithms:
        found.append(
            f"tacos: rule {Tacos().rule}, the best of {ATTEMPTS} attempts or more; tacos random: "
            f"the paper's rule, one attempt."
        )
    if size == "ci":
        found.append("A small run: for the paper's setting, size=paper.")
    return found
