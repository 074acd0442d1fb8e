"""The quickstart's pictures; run as a module, it draws those of the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

import jaxcoll as jc
from experiments.quickstart.candidates import Candidate, best_at, build_topology, candidates
from experiments.registry import configure
from experiments.study import write_figure
from jaxcoll import Bound, Topology, draw

# Drawn beside the winners, however they fare.
BASELINES = ("ring", "direct", "bucket")
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "images"


def pictures(
    topology: Topology,
    found: Sequence[Candidate],
    sizes: Sequence[int],
    bounds: Sequence[Bound],
    seed: int,
    model: str = "astra",
) -> dict[str, Figure]:
    """Three figures, by name.

    topology: the network, with one chunk's tree in the all-gather of the candidate that is best
    at the largest size, of those with few chunks. heatmap: that candidate's links over time, beside
    the ring's, for the middle size. algbw: the bandwidth against size of all candidates that are
    best at some size, and of the baselines.
    """
    middle = len(sizes) // 2
    defined = [candidate for candidate in found if candidate.is_defined]
    best = best_at([c for c in found if c.chunks is not None] or found, len(sizes) - 1)
    gather = jc.synthesize(
        topology, "all_gather", best.synthesizer, chunks=best.chunks, nbytes=sizes[-1], seed=seed
    )
    ring = next((c for c in defined if c.synthesizer == "ring"), best)
    shown = [ring] if ring is best else [ring, best]
    winners = [best_at(found, i) for i in range(len(sizes))]
    drawn = [c for c in defined if c in winners or c.synthesizer in BASELINES]
    algbw = {c.label: [s / t for s, t in zip(sizes, c.times, strict=True)] for c in drawn}
    limit = [size / bound.time for size, bound in zip(sizes, bounds, strict=True)]
    return {
        "topology": draw.draw_topology(topology, gather, chunk=0),
        "heatmap": draw.draw_heatmap(
            *(jc.simulate(c.schedules[middle], sizes[middle], model) for c in shown),
            labels=[c.label for c in shown],
        ),
        "algbw": draw.draw_algbw(sizes, algbw, limit),
    }


def main(folder: Path = DOCUMENTATION) -> None:
    """Draws the figures of the configured quickstart; runs nothing on devices."""
    _, config = configure(["experiment=quickstart"])
    topology = build_topology(config.topology, config.hardware)
    sizes, model, seed = config.sizes, config.link_model, config.seed
    found = list(candidates(topology, config.synth, sizes, model, seed))
    bounds = [jc.bound(topology, "all_reduce", nbytes) for nbytes in sizes]
    drawn = pictures(topology, found, sizes, bounds, seed, model)
    hosts = jc.topologies.dgx_h100(2)
    drawn["hosts"] = draw.draw_topology(hosts)
    drawn["loads"] = draw.draw_loads(jc.synthesize(hosts, "all_reduce", "ring"))
    for name, figure in drawn.items():
        print(write_figure(folder / f"{name}.png", figure, dpi=90))


if __name__ == "__main__":
    main()
