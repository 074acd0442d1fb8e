"""An all_reduce of a group beside ranks that help: bounds below the best of all trees.

The best is a linear program over every in-tree and every out-tree of four vertices, by root: bytes
that meet in a vertex come in over its in-trees and go out over its out-trees.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from jaxcoll.bounds import bound
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.topologies import fully_connected
from jaxcoll.topology import Topology

VERTICES = range(4)
PAIRS = [(u, v) for u in VERTICES for v in VERTICES if u != v]


def out_trees(root: int, members: frozenset[int]) -> Iterator[list[tuple[int, int]]]:
    """Every tree from a root over the members, and over any others."""
    others = [v for v in VERTICES if v not in members and v != root]
    needed = sorted(members - {root})
    for count in range(len(others) + 1):
        for more in itertools.combinations(others, count):
            inner = [*needed, *more]
            for parents in itertools.product([root, *inner], repeat=len(inner)):
                if _is_tree(root, dict(zip(inner, parents, strict=True))):
                    yield list(zip(parents, inner, strict=True))


def _is_tree(root: int, parent: dict[int, int]) -> bool:
    for start in parent:
        seen, at = set(), start
        while at != root:
            if at in seen:
                return False
            seen.add(at)
            at = parent[at]
    return True


def best_rate(bandwidth: dict[tuple[int, int], float], members: frozenset[int]) -> float:
    """Bytes of the buffer per second, by the program."""
    columns, root_of, sign = [], [], []
    for root in VERTICES:
        for tree in out_trees(root, members):
            for is_in in (False, True):
                links = [(v, u) for u, v in tree] if is_in else tree
                if all(link in bandwidth for link in links):
                    columns.append(links)
                    root_of.append(root)
                    sign.append(1 if is_in else -1)
    links = list(bandwidth)
    load = np.array([[link in column for column in columns] for link in links], float)
    equal = np.array(
        [[s * (r == root) for r, s in zip(root_of, sign, strict=True)] for root in VERTICES]
    )
    gained = -(np.array(sign) > 0).astype(float)
    found = linprog(gained, load, list(bandwidth.values()), equal, np.zeros(4))
    return -found.fun


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 2, 5]), min_size=12, max_size=12),
    st.sampled_from([(0, 1), (0, 1, 2), (1, 3)]),
)
def test_no_trees_beat_the_bound(speeds, members):
    bandwidth = {pair: 1e9 * speed for pair, speed in zip(PAIRS, speeds, strict=True) if speed}
    # A circle both ways keeps every rank in reach.
    bandwidth |= {pair: 1e9 for pair in PAIRS if abs(pair[0] - pair[1]) in (1, 3)}
    src, dst = zip(*bandwidth, strict=True)
    topology = Topology(4, src, dst, [0.0] * len(src), list(bandwidth.values()))  # type: ignore[arg-type]
    what = Collective("all_reduce", 4, 1, (members,))
    assert bound(topology, what, 1e9).time >= 0
    assert 1e9 / bound(topology, what, 1e9).time >= best_rate(bandwidth, frozenset(members)) * (
        1 - 1e-6
    )


@pytest.mark.parametrize("members", [2, 3])
def test_it_is_met_where_all_are_joined(members):
    """At h + m / 2 links, with m members and h others; of two members at the links of one."""
    bandwidth = dict.fromkeys(PAIRS, 1e9)
    what = Collective("all_reduce", 4, 1, (tuple(range(members)),))
    rate = 1e9 / bound(fully_connected(4, alpha=0.0, bandwidth=1e9), what, 1e9).time
    assert rate == pytest.approx(best_rate(bandwidth, frozenset(range(members))), rel=1e-6)
    assert rate == pytest.approx({2: 3e9, 3: 2.5e9}[members])


def test_groups_are_stated_as_for_a_schedule():
    """Of a kind with its groups the same as of their collective, which has its own."""
    full = fully_connected(6, bandwidth=48e9)
    groups = ((0, 1, 2), (3, 5))
    for helpers in (True, False):
        what = Collective("all_gather", 6, 1, groups, helpers=helpers)
        stated = bound(full, "all_gather", 1e9, groups=groups, helpers=helpers)
        assert stated == bound(full, what, 1e9)
    rooted = Collective("broadcast", 6, 1, groups, root=1)
    assert bound(full, "broadcast", 1e9, groups=groups, root=1) == bound(full, rooted, 1e9)
    with pytest.raises(CollectiveError, match="has its own groups, root and helpers"):
        bound(full, rooted, 1e9, groups=groups)
    with pytest.raises(CollectiveError, match="9"):
        bound(full, "all_gather", 1e9, groups=((0, 9),))
