"""Measured devices: kept in a file, interpolated, and priced by where nothing else is stated."""

from __future__ import annotations

import dataclasses
import json

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import tensorstate as ts
from jaxcoll import topologies
from jaxcoll.errors import TableWarning
from tensorstate import measuring
from tensorstate.collective_costs import MeasuredCosts
from tensorstate.measuring import KINDS, SIZES, Rates, dumps, loads
from tests.misuse_of.files import refuses_files
from tests.misuse_of.plans import GRAPH

MESH = Mesh(np.asarray(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
AXES = {"data": 2, "model": 2}
SECONDS = (1e-4, 2e-4, 3e-4, 1e-3, 8e-3)
RATES = Rates(
    "cpu",
    {2: 1e10, 4: 2e10},
    3e9,
    4e9,
    AXES,
    {(kind, axis): SECONDS for kind in KINDS for axis in AXES},
)


def test_between_sizes_costs_are_on_straight_lines():
    costs = MeasuredCosts(ts.MeshShape.of(AXES), RATES.collectives)
    for size, seconds in zip(SIZES, SECONDS, strict=True):
        assert costs.collective_seconds("all_reduce", 1, size) == seconds
    assert costs.collective_seconds("all_gather", 0, 0) == 0
    assert costs.collective_seconds("all_gather", 0, 1) == SECONDS[0]
    between = (SIZES[2] + SIZES[3]) // 2
    assert costs.collective_seconds("all_gather", 0, between) == pytest.approx(6.5e-4)
    slope = (SECONDS[4] - SECONDS[3]) / (SIZES[4] - SIZES[3])
    beyond = SECONDS[4] + SIZES[4] * slope
    assert costs.collective_seconds("all_to_all", 0, 2 * SIZES[4]) == pytest.approx(beyond)
    assert costs.schedule("all_to_all", 0, 1) is None
    one = MeasuredCosts(ts.MeshShape.of({"data": 1}), {})
    assert one.collective_seconds("all_reduce", 0, 100) == 0


def test_a_search_takes_what_was_measured_and_a_plan_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(measuring, "_measured", lambda *_: RATES)
    hardware = ts.Hardware.measure(MESH)
    plan = ts.search(GRAPH, mesh=MESH, hardware=hardware)
    assert plan.problem.network is hardware.network
    assert plan.problem.hardware.flops == RATES.flops
    plan.save(tmp_path / "plan.json")
    assert ts.load(tmp_path / "plan.json").specs is not None
    with pytest.raises(ts.PlanError, match="prices a mesh of"):
        ts.search(GRAPH, mesh={"data": 4}, hardware=hardware)


def test_what_was_measured_is_not_measured_again(tmp_path, monkeypatch):
    file = tmp_path / "measured.json"
    monkeypatch.setattr(measuring, "_measured", lambda *_: RATES)
    first = ts.Hardware.measure(MESH, cache=file)
    other = {**RATES.axes, "data": 4}
    changed = dataclasses.replace(RATES, axes=other)
    text = file.read_text()
    (place,) = loads(text)
    file.write_text(dumps({place: RATES, "elsewhere": changed}))
    monkeypatch.setattr(measuring, "_measured", None)  # whoever measures again fails
    assert ts.Hardware.measure(MESH, cache=file) == first
    file.write_text("{")
    monkeypatch.setattr(measuring, "_measured", lambda *_: RATES)
    with pytest.warns(TableWarning, match="skipped the measured rates"):
        assert ts.Hardware.measure(MESH, cache=file) == first
    assert file.read_text() == "{"  # someone's file, whatever it is


@pytest.mark.slow
def test_devices_are_measured():
    said = []
    mesh = Mesh(MESH.devices, MESH.axis_names, axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    hardware = ts.Hardware.measure(mesh, seconds=5.0, progress=said.append)
    network = hardware.network
    assert said
    assert set(hardware.flops) == ({2, 4, 8} if jax.config.jax_enable_x64 else {2, 4})  # type: ignore[attr-defined]
    assert hardware.memory_bandwidth > 0
    assert hardware.memory > 0
    assert network is not None
    for kind in KINDS:
        seconds = [network.collective_seconds(kind, 0, size) for size in SIZES]
        assert seconds == sorted(seconds)
        assert seconds[0] > 0


def broken() -> dict[str, str]:
    whole = json.loads(dumps({"here": RATES}))

    def changed(**fields):
        return json.dumps({**whole, "places": {"here": {**whole["places"]["here"], **fields}}})

    rows = whole["places"]["here"]["collectives"]
    return {
        "cut": dumps({"here": RATES})[:-40],
        "no object": "[]",
        "another format": json.dumps({**whole, "format": "tensorstate.measured/2"}),
        "a list": json.dumps({**whole, "places": []}),
        "one more field": json.dumps({**whole, "more": 1}),
        "unknown field": changed(colour="red"),
        "negative": changed(memory=-1.0),
        "no number": changed(memory_bandwidth="fast"),
        "infinite": changed(memory=1e999),
        "another element": changed(flops={"3": 1e9}),
        "no products": changed(flops={}),
        "other sizes": changed(sizes=[1, 2, 3]),
        "an axis more": changed(axes={**AXES, "pod": 2}),
        "an axis of none": changed(axes={**AXES, "data": 0}),
        "a collective less": changed(collectives=rows[1:]),
        "a collective unknown": changed(collectives=[*rows, {**rows[0], "kind": "gossip"}]),
        "seconds missing": changed(collectives=[{**rows[0], "seconds": [1.0]}, *rows[1:]]),
        "no seconds": changed(collectives=[{**rows[0], "seconds": [0, 1, 1, 1, 1]}, *rows[1:]]),
    }


test_broken_files_are_refused = refuses_files(loads, broken)


def test_files_go_both_ways():
    assert loads(dumps({"here": RATES})) == {"here": RATES}


def test_bad_arguments_are_refused():
    with pytest.raises(ts.PlanError, match="mesh"):
        ts.Hardware.measure({"data": 4})  # type: ignore[arg-type]
    for seconds in (0, -1, float("nan"), 1e9, "long"):
        with pytest.raises(ts.PlanError, match="seconds"):
            ts.Hardware.measure(MESH, seconds=seconds)  # type: ignore[arg-type]
    with pytest.raises(ts.PlanError, match="network"):
        dataclasses.replace(ts.HARDWARE["CPU"], network=5)  # type: ignore[arg-type]
    with pytest.raises(ts.PlanError, match=r"topology.*network.*measured"):
        ts.search(GRAPH, mesh={"data": 4}, hardware="CPU")


def test_a_measured_network_is_not_dropped_for_a_stated_one():
    """Its times are of the devices that are here, and a topology would silently replace them."""
    mesh = ts.MeshShape.of({"data": 4})
    costs = ts.AlphaBetaCosts(mesh, (1e-6,), (1e9,))
    measured = dataclasses.replace(ts.HARDWARE["CPU"], network=costs)
    ring = topologies.ring(4)
    for axes in ({"data": 4}, None):
        with pytest.raises(ts.PlanError, match=r"leave topology= out.*network=None"):
            ts.search(GRAPH, mesh=axes, topology=ring, hardware=measured)
    rates = dataclasses.replace(measured, network=None)
    assert ts.search(GRAPH, mesh={"data": 4}, topology=ring, hardware=rates).problem.network
    assert ts.search(GRAPH, mesh={"data": 4}, hardware=measured).problem.network is costs
