"""After failures: nothing beats the bound, and joint trees beat what two phases can reach."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.config import configure
from experiments.forestcoll.failures import after
from experiments.study import ConfigError
from jaxcoll import topologies
from tests.experiments.runs import small_run


def test_the_claims_of_the_small_run():
    rows = small_run("forestcoll-failures").rows
    assert {row["failures"] for row in rows} == {1, 2}
    for row in rows:
        ways = [row[f"{name} %"] for name in ("joint trees", "ForestColl", "ring")]
        assert max(ways) <= 1.0001 * row["bound %"]
        assert row["ring %"] < row["joint trees %"]
        assert row["worst joint / bound"] >= 0.9999
    tori = [row for row in rows if row["network"].startswith("torus")]
    assert all(row["ForestColl %"] < row["joint trees %"] for row in tori)


def test_failures_are_wires_both_ways_and_never_cut_the_network():
    for number in range(20):
        left = after(topologies.ring(4), 1, np.random.default_rng(number))
        assert left.num_links == 6
    hosts = topologies.dgx_h100(2)
    left = after(hosts, 3, np.random.default_rng(0))
    assert left.num_links == hosts.num_links - 6
    assert all(18 in ends for ends in left.losses.links)


@pytest.mark.parametrize("wrong", ["draws=0", "failures=[]", "nbytes=0", "failures=[-1]"])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ConfigError):
        configure(["experiment=forestcoll-failures", wrong])
