"""The paper's printed measurements, beside ours."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from experiments.paper import IDEAL, PaperValue
from experiments.study import Row
from experiments.tacos.measure import Run, format_size


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
