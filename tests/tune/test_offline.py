"""Offline tuning: tables of measured times, decisions and failures."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from experiments.autoccl.searches import Exhaustive
from jaxcoll.configurations import Config
from jaxcoll.configurations.space import Space, Subspace
from jaxcoll.errors import TuneError
from jaxcoll.progress import Progress
from jaxcoll.tune.backend_space import jax_space
from jaxcoll.tune.in_use import this_machine
from jaxcoll.tune.offline_tuner import Outcome, offline, tune
from jaxcoll.tune.table import Table
from jaxcoll.tune.trial import Trial

MESH = Mesh(np.array(jax.devices()[:2]), ("x",))
DEFAULT = Config({"algorithm": "default", "lowering": "auto", "parts": 1, "in_flight": 1})
NATIVE = DEFAULT.replace(algorithm="native")
BROKEN = DEFAULT.replace(algorithm="swing", lowering="broken")


def few(task, backend) -> Space:
    """The default, jax.lax's collective, and a configuration that does not compile."""
    return Space(tuple(Subspace(config) for config in (DEFAULT, NATIVE, BROKEN)), DEFAULT)


def exhaustive(space: Space, seed: int) -> Exhaustive:
    return Exhaustive(space, seed=seed)


def test_a_table_of_all_tasks():
    outcomes: list[Outcome] = []
    table = offline(
        MESH,
        "x",
        ["all_reduce"],
        [64, 4096],
        space=few,
        search=exhaustive,
        on_outcome=outcomes.append,
    )
    assert [outcome.task.nbytes for outcome in outcomes] == [64, 4096]
    machine = this_machine()
    for outcome in outcomes:
        assert outcome.config in (DEFAULT, NATIVE)
        assert list(outcome.failed) == [BROKEN]
        assert table.is_quarantined(outcome.task, BROKEN, machine)
        assert not table.is_quarantined(outcome.task, NATIVE, machine)
        assert set(table.times(outcome.task, machine)) == {DEFAULT, NATIVE}
        assert table.lookup(outcome.task, machine) == outcome.config


def test_what_an_earlier_run_quarantined_is_not_tried():
    given = offline(MESH, "x", ["all_gather"], [64], space=few, search=exhaustive)
    before = given.show()
    outcomes: list[Outcome] = []
    offline(
        MESH,
        "x",
        ["all_gather"],
        [64],
        space=few,
        search=exhaustive,
        table=given,
        on_outcome=outcomes.append,
    )
    assert outcomes[0].failed == {}
    assert given.show() == before


def test_the_whole_space_by_the_default_search():
    outcomes: list[Outcome] = []
    seen: list[Progress] = []
    offline(
        MESH,
        "x",
        ["all_to_all"],
        [256],
        evaluations=6,
        on_outcome=outcomes.append,
        progress=seen.append,
    )
    assert [each.done for each in seen] == list(range(1, outcomes[0].tried + 1))
    assert {each.total for each in seen} == {6}
    assert outcomes[0].tried <= 6
    assert outcomes[0].config in jax_space(outcomes[0].task)


def test_rounds_of_the_final_comparison(monkeypatch):
    rounds: list[int] = []
    counted = Trial.seconds

    def seconds(self, programs, count):
        rounds.append(count)
        return counted(self, programs, count)

    monkeypatch.setattr(Trial, "seconds", seconds)
    trial = Trial("all_reduce", 64, MESH, "x")
    search = Exhaustive(few(trial.task, "cpu"))
    tune(trial, search, Table(), this_machine(), 3, final_rounds=2)
    assert rounds[-1] == 2
    with pytest.raises(TuneError, match="final_rounds"):
        tune(trial, search, Table(), this_machine(), 3, final_rounds=1)


def test_a_candidate_that_seemed_slow_at_first_is_chosen(monkeypatch):
    """The fastest was measured while the machine was busy, and is the ninth of ten."""
    trial = Trial("all_reduce", 64, MESH, "x")
    configs = [DEFAULT, NATIVE, *(DEFAULT.replace(parts=n) for n in range(2, 10))]
    space = Space(tuple(Subspace(config) for config in configs), DEFAULT)
    search = Exhaustive(space)
    for place, config in enumerate(configs):
        search.tell(config, 1 + place / 10)
        monkeypatch.setitem(trial.programs, config, config)
    fast = configs[8]

    def seconds(programs, rounds):
        return np.array([[0.5 if config == fast else 1.0 for config in programs]] * rounds)

    monkeypatch.setattr(trial, "checked", lambda config: config)
    monkeypatch.setattr(trial, "seconds", seconds)
    assert tune(trial, search, Table(), this_machine(), len(configs)).config == fast


def test_a_second_search_compiles_what_failed_and_nothing_else(monkeypatch):
    trial = Trial("all_reduce", 64, MESH, "x")
    first = tune(trial, Exhaustive(few(trial.task, "cpu")), Table(), this_machine(), 3, 2)
    compiled, whole = [], trial.compile
    monkeypatch.setattr(trial, "compile", lambda config: compiled.append(config) or whole(config))
    second = tune(trial, Exhaustive(few(trial.task, "cpu")), Table(), this_machine(), 3, 2)
    assert compiled == [BROKEN]
    assert second.tried == first.tried == 2


def test_a_search_that_was_told_all_times_only_decides():
    trial = Trial("all_reduce", 64, MESH, "x")
    space = few(trial.task, "cpu")
    measured = Exhaustive(space)
    tune(trial, measured, Table(), this_machine(), 3, 2)
    told = Exhaustive(space)
    for config in space.configs():
        if config == BROKEN:
            told.tell_failed(config, "failed")
        else:
            told.tell(config, 1.0 if config == NATIVE else 9.0)
    table = Table()
    outcome = tune(trial, told, table, this_machine(), 3, 2)
    assert outcome.tried == 2
    assert outcome.config in (DEFAULT, NATIVE)
    assert table.times(outcome.task, this_machine()) == {}


@pytest.mark.parametrize(
    "change",
    [
        {"collectives": ["psum"]},
        {"collectives": []},
        {"sizes": []},
        {"sizes": [0]},
        {"sizes": 8},
        {"evaluations": 0},
        {"axis": "z"},
    ],
)
def test_misuse(change):
    arguments = {"mesh": MESH, "axis": "x", "collectives": ["all_reduce"], "sizes": [8], **change}
    with pytest.raises(TuneError):
        offline(**arguments)
