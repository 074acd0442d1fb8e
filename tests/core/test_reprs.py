"""A public value at a prompt: one line, which says how large it is."""

from __future__ import annotations

import dataclasses
import inspect
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import jaxcoll as jc
from jaxcoll import execute, simulation
from jaxcoll.errors import TopologyError
from jaxcoll.execute.choice.cheapest import Candidate
from jaxcoll.links import capable_switches
from jaxcoll.synth.forestcoll.stages import forest

MOST = 120


@pytest.fixture(scope="module")
def values(tmp_path_factory) -> dict[str, object]:
    """A value of every public class that is not an error, of sizes at which fields fill a page."""
    topology = jc.topologies.torus(6, 6, alpha=1e-6, bandwidth=5e10)
    schedule = jc.synthesize(topology, "all_gather", synthesizer="ring")
    costs = simulation.ExecutionCosts(
        "cpu",
        1e-6,
        1e-6,
        1e-10,
        1e-10,
        native=(simulation.NativeCost("all_gather", 1e-5, 1e-10),),
    )
    message = simulation.Message(tuple(range(7)), 1e6)
    columns_of_a_line: Any = (range(6), range(1, 7), [1e-6] * 6, [1e9] * 6)
    line = jc.Topology(7, *columns_of_a_line, allow_unreachable=True)
    candidate = Candidate("ring", schedule, 1e-3)
    orbit = jc.synthesize_orbit(topology, "all_to_all", chunks=1)
    listed = [
        topology,
        schedule,
        schedule.collective,
        schedule.edges,
        schedule.provenance,
        topology.grid,
        topology.placement,
        jc.simulate(schedule, nbytes=1e6),
        jc.bound(topology, "all_gather", nbytes=1e6),
        jc.bounds.optimum(topology),
        costs,
        costs.native[0],
        message,
        simulation.simulate_messages(line, [message] * 30),
        simulation.Framing(1024, 16),
        simulation.simulate_together([schedule, schedule], 1e6),
        capable_switches.InNetwork((16,), (16, 17)),
        simulation.NetworkTree(0, tuple((0, v) for v in range(1, 40))),
        execute.Explanation(
            schedule.collective, 10, topology, costs, (candidate,), candidate, False
        ),
        forest(topology),
        jc.bounds.cost(schedule),
        simulation.Clock(Fraction(1, 3), True),
        execute.Probe(topology, ("rank 3 to rank 7: 9.8 of 50 Mbit/s",) * 9, np.ones(16), 3.2),
        next(jc.compare(topology, "all_gather", [1e6], synthesizers=["ring"])),
        jc.calibration.Calibration(topology, (), (), 12),
        orbit,
        orbit.sends_of(5),
        orbit.translations,
        jc.simulate(orbit, 1e6),
        jc.synthesize_compact(topology, tmp_path_factory.mktemp("compact") / "s"),
    ]
    return {type(value).__name__: value for value in listed}


def test_each_public_class_is_among_them(values):
    faces = [jc, jc.bounds, jc.calibration, jc.comparison, jc.execute, jc.grid, capable_switches]
    faces += [jc.mesh, jc.orbits, jc.paths, jc.schedule, jc.simulation, jc.trees]
    public = (getattr(face, name) for face in faces for name in face.__all__)
    classes = {c.__name__ for c in public if inspect.isclass(c) and not issubclass(c, Exception)}
    # An Optimality is five facts and a LinkModel a name and a law, none of which says how large it
    # is.
    assert values.keys() == (classes | {"CompactSchedule"}) - {"LinkModel", "Optimality"}


def test_a_line_shows_each(values):
    for name, value in values.items():
        text = repr(value)
        assert text.startswith(f"{name}("), text
        assert "\n" not in text, text
        assert len(text) <= MOST, text
        assert any(character.isdigit() for character in text), text


def test_a_line_shows_each_synthesizer():
    classes: Any = jc.synth.SYNTHESIZERS.values()
    for synthesizer in classes:
        text = repr(synthesizer())
        assert "\n" not in text
        # One that is made of two others shows both, which is what it is.
        parts = [f for f in dataclasses.fields(synthesizer) if "Synthesizer" in str(f.type)]
        assert len(text) <= MOST * (1 + len(parts)), text


@pytest.mark.parametrize("name", ["alpha", "bandwidth"])
def test_one_speed_for_all_links_is_refused_in_one_sentence(name):
    columns: dict[str, Any] = {
        "src": [0, 1, 2],
        "dst": [1, 2, 0],
        "alpha": [1e-6] * 3,
        "bandwidth": [5e10] * 3,
        name: 5.0,
    }
    with pytest.raises(TopologyError) as refusal:
        jc.Topology(3, **columns)
    assert str(refusal.value) == (
        f"{name} must be one column of numbers, one per link, got 5.0; "
        "where all links are equal, repeat it: [value] * len(src)"
    )
