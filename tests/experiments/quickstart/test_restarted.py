"""A run that loses a link between two starts goes on with the losses of one that does not."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.quickstart import restarted
from jaxcoll import topologies
from jaxcoll.cli.failing import after_failures


@pytest.mark.slow
def test_one_argument_changes_and_the_losses_do_not(tmp_path, monkeypatch):
    folder, whole = tmp_path / "run", topologies.torus(2, 4)
    left = after_failures(whole, ["0-1"], [])
    first = restarted.train(2, whole, folder)
    second = restarted.train(4, left, folder)
    undisturbed = restarted.train(4, whole, tmp_path / "other")
    assert first + second == pytest.approx(undisturbed, abs=2e-6)
    assert len(list(folder.glob("all_reduce-*.json"))) == 2
    with np.load(folder / "checkpoint.npz") as saved:
        assert int(saved["step"]) == 4
    # The schedule was synthesized once per network.
    monkeypatch.setattr(restarted.jc, "synthesize", None)
    assert restarted.schedule_of(left, 1024, folder).topology == left
