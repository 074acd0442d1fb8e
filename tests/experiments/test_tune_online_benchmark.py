"""The benchmark of the online tuner, on made-up times: the steps and gaps that are asked for."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.benchmarks.tune_online import made_up, settle
from jaxcoll.tune.training_step.leader import Leader


@pytest.mark.parametrize(("tasks", "candidates", "most"), [(1, 15, 60), (1, 30, 150), (3, 15, 90)])
@pytest.mark.slow
def test_the_leader_settles_within_the_steps_asked_for(tasks, candidates, most):
    row = made_up(tasks, candidates, 20)
    assert row["most steps"] <= most
    assert int(row["within 5 %"].split(" of ")[0]) >= 19


def test_a_candidate_that_is_far_faster_is_chosen():
    effects = np.array([[1.0, 0.0, 1.0], [0.5, 0.5, 0.0]])
    steps, chosen = settle(Leader(), effects, seed=0)
    assert tuple(chosen) == (1, 2)
    assert steps > 3
