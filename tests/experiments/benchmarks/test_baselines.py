"""No synthesizer, in any of its variants, is faster than what auto takes on Table IV."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from experiments.benchmarks.default import TABLE_IV
from jaxcoll import topologies
from jaxcoll.bounds import bound
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError, TopologyError
from jaxcoll.schedule import Schedule
from jaxcoll.simulation import MODELS, simulate
from jaxcoll.synth import (
    REGISTRY,
    SYNTHESIZERS,
    JointTrees,
    MiddleTrees,
    Orbits,
    Portfolio,
    Synthesizer,
    synthesize,
)
from jaxcoll.synth.auto import chosen_by_auto
from jaxcoll.synth.building.base import Problem
from jaxcoll.topology import Topology

SIZES = {"1 KB": 10**3, "1 MB": 10**6, "1 GB": 10**9}
# For tiny networks, until time runs out: no baselines.
SEARCHES = {"step_milp", "sccl"}
PARTIAL = (JointTrees, MiddleTrees, Orbits)  # of some networks only
# The paper's Table IV: heterogeneous, and ranks that differ in the bandwidth they have.
HETEROGENEOUS = {"switch-2d", "3d-rfs", "dragonfly", "dgx-h100"}


class Result(NamedTuple):
    """The fastest schedule of a synthesizer at one size; of equals the one with fewer messages."""

    seconds: float
    messages: int
    chunks: int
    took: str


def variants_of(name: str, model: str) -> Sequence[Synthesizer]:
    if name == Portfolio.name:
        return [Portfolio(model=model, tolerance=0)]
    return REGISTRY[name].variants(fixed=True) or [SYNTHESIZERS[name]()]


def results_of(
    topology: Topology, name: str, chunks: Sequence[int], model: str
) -> dict[str, Result]:
    """The best of a synthesizer's variants and numbers of chunks at every size, by size."""
    found: dict[str, list[Result]] = {size: [] for size in SIZES}
    refusal: CollectiveError | TopologyError | None = None
    for count, variant in itertools.product(chunks, variants_of(name, model)):
        made: dict[Synthesizer, Schedule] = {}
        for size, nbytes in SIZES.items():
            maker = variant.with_nbytes(nbytes)
            try:
                if maker not in made:
                    made[maker] = synthesize(topology, "all_reduce", maker, chunks=count)
            except (CollectiveError, TopologyError) as error:
                refusal = error
                break
            schedule = made[maker]
            seconds = simulate(schedule, nbytes, model).time
            result = Result(seconds, schedule.num_messages, count, chosen_by_auto(schedule))
            found[size].append(result)
    if refusal and not all(found.values()):
        raise refusal
    return {size: min(results) for size, results in found.items()}


def measured(
    topology: Topology, names: Sequence[str], chunks: Sequence[int], model: str
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """A row for each synthesizer that is defined for a network, and why the others are not."""
    rows, refused = [], {}
    for name in names:
        try:
            results = results_of(topology, name, chunks, model)
        except (CollectiveError, TopologyError) as error:
            refused[name] = str(error)
            continue
        row: dict[str, Any] = {"synthesizer": name}
        for size, result in results.items():
            least = bound(topology, "all_reduce", SIZES[size]).time
            row |= {size: result.seconds, f"% at {size}": 100 * least / result.seconds}
        row["took"] = [result.took for result in results.values()]
        rows.append(row)
    return rows, refused


def winners(rows: Sequence[Mapping[str, Any]], size: str) -> list[str]:
    """The synthesizers that are fastest at a size, of the rows of one network."""
    fastest = min(row[size] for row in rows)
    return [row["synthesizer"] for row in rows if row[size] <= fastest * (1 + 1e-9)]


def test_networks_are_those_of_table_iv_and_hosts():
    assert len(TABLE_IV) == 9 + 1
    for name, make in TABLE_IV.items():
        topology = make()
        assert topology.is_homogeneous == (name not in HETEROGENEOUS)
        assert topology.num_ranks <= 64


def test_rows_and_reasons():
    topology = topologies.mesh(2, 3)
    rows, refused = measured(topology, ["ring", "rhd", "tto", "bucket"], (1, 2), "astra")
    assert [row["synthesizer"] for row in rows] == ["ring", "tto", "bucket"]
    assert list(refused) == ["rhd"]
    assert "power of two" in refused["rhd"]
    assert all(0 < row[f"% at {size}"] <= 100 for row in rows for size in SIZES)
    assert winners(rows, "1 GB") == ["ring"]


def test_variants_and_sizes():
    topology = topologies.hypercube(3)
    results = results_of(topology, "double_binary_tree", (1, 8), "astra")
    # One piece is best for small data, many for large.
    assert results["1 KB"].messages < results["1 GB"].messages
    with pytest.raises(TopologyError, match="only defined on a DGX-1"):
        results_of(topology, "c_cube", (1,), "astra")
    assert len(variants_of("rhd", "astra")) == 4


SMALL = (topologies.torus(4, 4), topologies.mesh(3, 4))


@pytest.mark.parametrize(
    ("network", "model"),
    [
        *zip(SMALL, MODELS, strict=True),
        # The other model on each of the two.
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in zip(SMALL, MODELS[::-1], strict=True)
        ),
        *(pytest.param(make(), "astra", marks=pytest.mark.slow) for make in TABLE_IV.values()),
    ],
    ids=str,
)
@pytest.mark.slow
def test_nothing_is_quicker_than_auto(network, model):
    names = [name for name in SYNTHESIZERS if name not in SEARCHES]
    rows, _ = measured(network, names, (1, 4), model)
    assert rows[-1]["synthesizer"] == "auto"
    tried = [r for r in rows if r["synthesizer"] == "auto" or REGISTRY[r["synthesizer"]].variants()]
    problem = Problem(network, Collective("all_reduce", network.num_ranks))
    for size, nbytes in SIZES.items():
        # Some are set aside where they say that they may not win.
        aside = {each.name for each in PARTIAL if not each(nbytes).may_win(problem)}
        wanted = [r for r in tried if r["synthesizer"] not in aside]
        assert "auto" in winners(wanted, size)
        # What auto leaves out gains no more than it leaves to gain.
        assert all(row[size] >= rows[-1][size] * (1 - Portfolio().tolerance) for row in rows)
    assert all(rows[-1]["took"])
    assert not any(rows[0]["took"])
