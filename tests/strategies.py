"""Hypothesis strategies for networks, collectives and sound schedules, shared by all tests.

Random structure is drawn as a few small numbers and a seed: examples stay fast to draw, and
shrink towards few ranks, few links and few chunks.
"""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from jaxcoll import Collective, Schedule, Topology
from jaxcoll.kinds import KINDS, NAMES, those
from jaxcoll.links.capable_switches import InNetwork
from jaxcoll.topologies import fully_connected, hypercube, mesh, ring, switch, torus
from jaxcoll.topologies.grids import grid
from tests import reference

ROOTED = those(lambda kind: kind.has_root)

ALPHAS = (0.0, 0.5e-6, 1e-6, 0.7e-6, 3e-6)
BANDWIDTHS = (50e9, 25e9, 12.5e9, 100e9, 30e9, 70e9)
# Speeds that no float holds: a third of a link, and a rational with two long terms.
EXACT_BANDWIDTHS = (Fraction(100 * 10**9, 3), Fraction(299993, 24989))

SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def topologies(
    draw: st.DrawFn,
    min_ranks: int = 2,
    max_ranks: int = 24,
    homogeneous: bool | None = None,
    switches: bool = False,
    parallel: bool = True,
    exact: bool = False,
) -> Topology:
    """A random strongly connected digraph.

    Args:
        homogeneous: one alpha and bandwidth for all links, or mixed; either when None.
        switches: up to three vertices may be switches, of which some may copy and some add.
        parallel: links may be parallel.
        exact: bandwidths may be rationals that no float holds.
    """
    ranks = draw(st.integers(min_ranks, max_ranks))
    extra_vertices = draw(st.integers(0, 3)) if switches and ranks > 1 else 0
    extra_links = draw(st.integers(0, 3 * ranks)) if ranks > 1 else 0
    uniform = draw(st.booleans()) if homogeneous is None else homogeneous
    rng = random.Random(draw(SEEDS))
    vertices = ranks + extra_vertices
    pairs = []
    if vertices > 1:
        order = rng.sample(range(vertices), vertices)
        if rng.random() < 0.5:
            pairs = [(order[i - 1], order[i]) for i in range(vertices)]
        else:
            for i in range(1, vertices):
                parent = order[rng.randrange(i)]
                pairs += [(parent, order[i]), (order[i], parent)]
        for _ in range(extra_links):
            u, v = rng.sample(range(vertices), 2)
            if parallel or (u, v) not in pairs:
                pairs.append((u, v))
    rng.shuffle(pairs)
    speeds = BANDWIDTHS + (EXACT_BANDWIDTHS if exact else ())
    alphas, bandwidths = [rng.choice(ALPHAS)], [rng.choice(speeds)]
    if not uniform:
        alphas, bandwidths = ALPHAS, speeds
    return Topology(
        ranks,
        [u for u, _ in pairs],  # type: ignore[arg-type]
        [v for _, v in pairs],  # type: ignore[arg-type]
        [rng.choice(alphas) for _ in pairs],  # type: ignore[arg-type]
        [rng.choice(bandwidths) for _ in pairs],  # type: ignore[arg-type]
        num_vertices=vertices,
        name=rng.choice(["", "random", 'a "b" \u00e9']),
        in_network=InNetwork(
            *(
                [v for v in range(ranks, vertices) if rng.random() < likely]  # type: ignore[arg-type]
                for likely in rng.choice([(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)])
            )
        ),
    )


@st.composite
def grids(
    draw: st.DrawFn, max_ranks: int = 36, max_dimensions: int = 3, homogeneous: bool = False
) -> Topology:
    """A mesh, torus or mixture with sides that may be unequal, 1 or 2.

    Args:
        homogeneous: one alpha and bandwidth for all dimensions, or one for each.
    """
    sides: list[int] = []
    left = max_ranks
    for _ in range(draw(st.integers(1, max_dimensions))):
        sides.append(draw(st.integers(1, max(1, min(6, left)))))
        left //= sides[-1]
    wrap = tuple(draw(st.booleans()) for _ in sides)
    alphas = [draw(st.sampled_from(ALPHAS)) for _ in sides]
    bandwidths = [draw(st.sampled_from(BANDWIDTHS)) for _ in sides]
    if homogeneous:
        alphas, bandwidths = alphas[:1] * len(sides), bandwidths[:1] * len(sides)
    return grid(sides, wrap, alpha=alphas, bandwidth=bandwidths, name="grid")


@st.composite
def families(draw: st.DrawFn, max_ranks: int = 16) -> Topology:
    """A member of a named family."""
    n = draw(st.integers(2, max_ranks))
    return draw(
        st.sampled_from(
            [
                lambda: ring(n),
                lambda: ring(n, bidirectional=False),
                lambda: fully_connected(n),
                lambda: switch(n),
                lambda: switch(n, degree=1 + n // 3),
                lambda: hypercube(max(1, n.bit_length() - 1)),
                lambda: mesh(2, n // 2),
                lambda: torus(max(1, n // 3), 3) if max_ranks >= 3 * max(1, n // 3) else ring(n),
            ]
        )
    )()


@st.composite
def collectives(
    draw: st.DrawFn,
    num_ranks: int,
    kinds: tuple[str, ...] = NAMES,
    max_chunks: int = 3,
    grouped: bool | None = None,
) -> Collective:
    """Any collective on a number of ranks: k chunks per shard, random disjoint groups, a root.

    Args:
        grouped: random groups, or one group of all ranks in order; either when None.
    """
    kind = draw(st.sampled_from(kinds))
    chunks = draw(st.integers(1, max_chunks))
    groups: Any = None
    if draw(st.booleans()) if grouped is None else grouped:
        rng = random.Random(draw(SEEDS))
        left = rng.sample(range(num_ranks), num_ranks)
        groups = []
        while left and (not groups or rng.random() < 0.8):
            size = rng.randint(1, len(left))
            groups.append(tuple(left[:size]))
            left = left[size:]
        groups = tuple(groups)
    smallest = min(map(len, groups)) if groups else num_ranks
    root: Any = draw(st.none() | st.integers(0, smallest - 1)) if kind in ROOTED else None
    if KINDS[kind].has_roots and draw(st.booleans()):
        root = draw(st.sets(st.integers(0, smallest - 1), min_size=1))
    return Collective(kind, num_ranks, chunks, groups, root)


@st.composite
def schedules(
    draw: st.DrawFn,
    kinds: tuple[str, ...] = NAMES,
    networks: st.SearchStrategy[Topology] | None = None,
    grouped: bool | None = None,
    max_chunks: int = 3,
) -> Schedule:
    """A sound schedule of any kind, by the reference synthesizer; no send of it can be spared."""
    if networks is None:
        networks = topologies(max_ranks=8, switches=True) | grids(max_ranks=9) | families(8)
    topology = draw(networks)
    collective = draw(collectives(topology.num_ranks, kinds, max_chunks, grouped))
    return reference.synthesize(topology, collective, draw(SEEDS))
