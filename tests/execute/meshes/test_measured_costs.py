"""Measured execution costs: they come back, go to a file and back, and foreign ones are refused."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxcoll as jc
from jaxcoll.errors import CollectiveError, TableWarning, TuneError
from jaxcoll.execute.choice import measured_costs
from jaxcoll.execute.choice import measured_order as measured_order_module
from jaxcoll.execute.choice.lockstep import Lockstep, host
from jaxcoll.execute.choice.measured_costs import dumps, loads, measure_execution
from jaxcoll.execute.choice.measured_order import FoundOrder, measured_order
from jaxcoll.simulation.execution_costs import costs_of, shipped_costs
from jaxcoll.simulation.execution_order import ROUNDS, STEPS
from jaxcoll.tune import this_machine
from tests.misuse_of.files import refuses_files

FOUR = Mesh(np.array(jax.devices()[:4]), ("x",))
CPU = costs_of("cpu")
assert CPU is not None
MINE = dataclasses.replace(CPU, machine=str(this_machine()), source="measured on 4 devices")
PLACE = f"{this_machine()}, 4 ranks"


@pytest.mark.slow
def test_costs_are_measured_once_and_kept(tmp_path, monkeypatch):
    file = tmp_path / "execution.json"
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    costs = jc.measure_execution(mesh, cache=file)
    assert costs.backend == "cpu"
    assert costs.shared
    assert costs.machine == str(this_machine())
    assert costs.permute > 0
    assert costs.copied > 0
    assert all(each.seconds > 0 for each in costs.native)
    monkeypatch.setattr(measured_costs, "_measured", None)  # whoever measures again fails
    assert jc.measure_execution(FOUR, cache=file) == costs


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.slow_members("8")
def test_permutes_of_the_devices_of_a_process_follow_one_another(ranks):
    mesh = Mesh(np.array(jax.devices()[:ranks]), ("x",))
    costs = jc.measure_execution(mesh, seconds=1)
    assert (costs.order, costs.half_duplex) == (ROUNDS, False)


@pytest.mark.parametrize(
    ("milliseconds", "order", "half_duplex"),
    [
        ((1, 11, 11, 12), STEPS, False),
        ((1, 11, 11, 21), ROUNDS, False),
        ((1, 11, 21, 21), ROUNDS, True),
        ((1, 11, 21, 12), STEPS, True),
    ],
)
def test_an_order_is_told_by_times(monkeypatch, milliseconds, order, half_duplex):
    monkeypatch.setattr(measured_order_module, "_program", lambda *_: None)
    monkeypatch.setattr(
        measured_order_module,
        "_upper_quartiles",
        lambda calls, _: milliseconds[: len(calls)],
    )
    alone = Lockstep([jax.process_index()], "a test")
    assert measured_order(FOUR, alone) == FoundOrder(order, half_duplex)
    two = Mesh(np.array(jax.devices()[:2]), ("x",))
    if half_duplex:  # two ranks cannot tell
        order = ROUNDS
    assert measured_order(two, alone) == FoundOrder(order, half_duplex)


@pytest.mark.parametrize(
    ("processes", "ranks"),
    [
        ([0, 0], (0, 1, None)),
        ([0, 0, 0, 0], (0, 1, 2)),
        ([0, 1], (0, 1, None)),
        ([1, 1, 0, 0], (0, 2, 3)),  # the third stays out of the first's process
        ([0, 0, 1], (0, 2, None)),
        ([0, 0, 1, 1, 2, 2], (0, 2, 4)),
    ],
)
def test_the_ranks_that_tell_are_of_as_many_processes_as_can_be(processes, ranks):
    devices = np.array([SimpleNamespace(process_index=of) for of in processes], object)
    mesh = SimpleNamespace(devices=devices)
    assert measured_order_module._ranks(mesh) == ranks  # type: ignore[arg-type]


def test_between_hosts_bytes_are_the_networks(monkeypatch):
    labels = []

    def medians(calls, *_):
        labels.extend(calls)
        return dict.fromkeys(calls, 0.5)

    found = FoundOrder(ROUNDS, half_duplex=True)
    monkeypatch.setattr(measured_costs, "measured_order", lambda *_: found)
    monkeypatch.setattr(measured_costs, "_call", lambda *_: None)
    monkeypatch.setattr(measured_costs, "net_medians", medians)
    alone = Lockstep([jax.process_index()], "a test")
    far = measured_costs._measured(FOUR, "cpu", "m", 2, 1.0, alone, None)
    assert not any(str(4 << 20) in label or label == "copies" for label in labels)
    shipped = shipped_costs("cpu", 2)
    assert (far.copied, far.added, far.swapped) == (shipped.copied, shipped.added, shipped.swapped)
    assert not far.shared
    assert far.half_duplex
    assert {each.per_byte for each in far.native} == {0.0}
    assert "2 hosts" in far.source
    near = measured_costs._measured(FOUR, "cpu", "m", 1, 1.0, alone, None)
    assert near.shared
    assert "copies" in labels


def test_processes_in_one_network_namespace_are_on_one_host():
    assert host() == host()
    here = {"host": host(), "mesh": [0, 1]}
    assert measured_costs._hosts([here, here]) == 1
    assert measured_costs._hosts([here, {**here, "host": "far"}]) == 2


def test_costs_of_this_machine_are_read_and_others_stay(tmp_path):
    file = tmp_path / "execution.json"
    other = dataclasses.replace(MINE, machine="gpu: NVIDIA H100, jax 0.12.0", backend="gpu")
    file.write_text(dumps({PLACE: MINE, "gpu: NVIDIA H100, jax 0.12.0, 8 ranks": other}))
    assert measure_execution(FOUR, cache=file) == MINE
    assert len(loads(file.read_text())) == 2


def test_a_file_is_written_beside_what_it_holds(tmp_path, monkeypatch):
    file = tmp_path / "execution.json"
    monkeypatch.setattr(measured_costs, "_measured", lambda *_: MINE)
    measure_execution(FOUR, cache=file)
    two = Mesh(np.array(jax.devices()[:2]), ("x",))
    measure_execution(two, cache=file)
    assert set(loads(file.read_text())) == {PLACE, f"{this_machine()}, 2 ranks"}
    file.write_text("{")
    with pytest.warns(TableWarning, match="skipped the execution costs"):
        assert measure_execution(FOUR, cache=file) == MINE
    assert file.read_text() == "{"  # someone's file, whatever it is


def broken() -> dict[str, str]:
    whole = json.loads(dumps({PLACE: MINE}))

    def changed(**fields):
        costs = {**whole["costs"][PLACE], **fields}
        return json.dumps({**whole, "costs": {PLACE: costs}})

    return {
        "cut": dumps({PLACE: MINE})[:-40],
        "no object": "[]",
        "another format": json.dumps({**whole, "format": "jaxcoll.execution-costs/2"}),
        "a list": json.dumps({**whole, "costs": []}),
        "one more field": json.dumps({**whole, "more": 1}),
        "negative": changed(permute=-1.0),
        "no number": changed(copied="fast"),
        "infinite": changed(added=1e999),
        "a word": changed(shared="yes"),
        "unknown backend": changed(backend="abacus"),
        "unknown field": changed(colour="red"),
        "native": changed(native=[{"kind": "gather", "seconds": 0.0, "per_byte": 0.0}]),
        "native twice": changed(native=[{"kind": "all_reduce", "seconds": 0, "per_byte": 0}] * 2),
        "of another machine": changed(machine="gpu: NVIDIA H100, jax 0.12.0"),
    }


test_broken_files_are_refused = refuses_files(loads, broken)


def test_files_go_both_ways():
    assert loads(dumps({PLACE: MINE})) == {PLACE: MINE}


def test_costs_of_another_machine_are_refused_by_name():
    other = dataclasses.replace(MINE, machine="cpu: 96 cores, jax 0.12.0.1")
    step = jax.shard_map(lambda v: jc.psum(v, "x"), mesh=FOUR, in_specs=P("x"), out_specs=P())
    x = np.ones(4, np.float32)
    with (
        jc.use_topology(None, execution=other),
        pytest.raises(CollectiveError, match=r"measured on cpu: 96 cores.*measure here"),
    ):
        jax.jit(step).lower(x)
    with jc.use_topology(None, execution=MINE):
        assert "all_reduce" in jax.jit(step).lower(x).as_text()


def test_bad_arguments_are_refused():
    with pytest.raises(TuneError, match="two devices or more"):
        measure_execution(Mesh(np.array(jax.devices()[:1]), ("x",)))
    with pytest.raises(TuneError, match="mesh"):
        measure_execution(4)  # type: ignore[arg-type]
    for seconds in (0, -1, float("nan"), 1e9, "long"):
        with pytest.raises(TuneError, match="seconds"):
            measure_execution(FOUR, seconds=seconds)  # type: ignore[arg-type]
