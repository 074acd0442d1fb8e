"""The quickstart of the search: its text, its checks, and its refusals."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from experiments.config import configure
from experiments.models import load_model
from experiments.study import CheckError, ConfigError
from experiments.tensorstate import quickstart
from experiments.tensorstate.quickstart import VOCABULARY, Text, python_text

NAME = "experiment=tensorstate-quickstart"


def test_the_text_is_long_and_printable():
    text = Text.of(python_text())
    assert len(text.codes) > 100_000
    assert 0 <= text.codes.min() <= text.codes.max() < VOCABULARY
    assert Text.of("a\u00e9").codes.tolist() == [ord("a"), VOCABULARY - 1]


def test_batches_are_pieces_and_what_follows():
    text = Text.of("0123456789" * 10)
    batch = text.batch(3, 4, 8, seed=1)
    assert batch["tokens"].shape == batch["next"].shape == (4, 8)
    assert np.array_equal(batch["tokens"][:, 1:], batch["next"][:, :-1])
    assert np.array_equal((batch["tokens"] - 47) % 10, (batch["next"] - 48) % 10)
    recomputed = text.batch(3, 4, 8, seed=1)
    assert np.array_equal(batch["tokens"], recomputed["tokens"])
    assert not np.array_equal(batch["tokens"], text.batch(4, 4, 8, seed=1)["tokens"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["mesh={data: 3}"], "has 3 devices, but the topology has 4 ranks"),
        (["layers=0"], "layers must be at least 1"),
        (["gap=0"], "gap must be above 0"),
        (["size=huge"], "unknown size 'huge'"),
    ],
)
def test_refused(arguments, expected):
    with pytest.raises(ConfigError, match=expected):
        configure([NAME, "size=ci", *arguments])


def test_a_plan_that_cannot_be_is_refused():
    _, config = configure([NAME, "size=ci", "memory_mb=0.001"])
    model = load_model("mlp")
    with pytest.raises(ConfigError, match=r"no plan fits into 1\.0 kB"):
        quickstart.plan_for(config, model)
    with pytest.raises(ConfigError, match="no hardware is called"):
        quickstart.plan_for(dataclasses.replace(config, device="abacus"), model)


def test_losses_are_checked():
    _, config = configure([NAME, "size=ci"])
    quickstart._check(config, [2.0, 1.0], [2.0, 1.0])
    with pytest.raises(CheckError, match=r"differ by 0\.1 at step 1"):
        quickstart._check(config, [2.0, 1.1], [2.0, 1.0])
    with pytest.raises(CheckError, match=r"not to 0\.4 of it"):
        quickstart._check(
            dataclasses.replace(config, max_final_loss_ratio=0.4), [2.0, 1.0], [2.0, 1.0]
        )
