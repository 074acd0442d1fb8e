"""The page of a plan: its numbers are those of the plan, and it is alive in a browser."""

from __future__ import annotations

import dataclasses
import json
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcoll.errors import JaxcollError
from tensorstate import AlphaBetaCosts, MeshShape, search
from tensorstate.cost.cost import estimate_cost
from tensorstate.report import web_page
from tensorstate.report.web_page import alternatives
from tests.pages.browser import look, needs_chromium

MESH = {"data": 2, "model": 2}
NETWORK = AlphaBetaCosts(MeshShape.of(MESH), (1e-7, 1e-7), (1e10, 4e10))
HOSTILE = "</script><img src=x onerror=window.hacked=1>"


def step(params, x):
    def loss(params):
        for weights in params.values():
            x_next = jax.nn.relu(x @ weights)
        return jnp.mean(x_next**2)

    gradients = jax.grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


def planned(**options):
    weights = jax.ShapeDtypeStruct((128, 128), jnp.float32)
    x = jax.ShapeDtypeStruct((64, 128), jnp.float32)
    arguments = ({"up": weights, HOSTILE: weights}, x)
    return search(step, arguments, mesh=MESH, network=NETWORK, hardware="CPU", **options)


@pytest.fixture(scope="module")
def plan():
    return planned()


@pytest.fixture(scope="module")
def pipelined():
    return planned(microbatches=4)


def data_of(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.mark.parametrize("which", ["plan", "pipelined"])
def test_the_events_add_up_to_the_step(which, request):
    plan = request.getfixturevalue(which)
    events = plan.timeline.events
    computed = math.fsum(event.seconds for event in events if event.axis < 0)
    carried = math.fsum(event.seconds for event in events if event.axis >= 0)
    assert computed == pytest.approx(plan.cost.compute, rel=1e-12)
    assert carried == pytest.approx(plan.cost.communication, rel=1e-12)
    ends = [event.start + event.seconds for event in events]
    assert ends[-1] == pytest.approx(plan.cost.serial_seconds)
    assert [event.start for event in events[1:]] == pytest.approx(ends[:-1], abs=1e-15)


def test_other_strategies_cost_what_the_whole_plan_would(plan):
    """Against the estimate of all decisions with one strategy replaced."""
    problem, result = plan.problem, plan.result
    classes = range(len(problem.graph.node_classes))
    found = alternatives(problem, result, classes)
    assert set(found) == set(classes)
    compared = 0
    for class_id, priced in found.items():
        for each in priced:
            strategies = list(result.decisions.strategies)
            strategies[class_id] = each.strategy
            decisions = dataclasses.replace(result.decisions, strategies=tuple(strategies))
            whole = estimate_cost(problem, decisions).serial_seconds
            assert each.seconds == pytest.approx(whole - result.cost.serial_seconds, abs=1e-12)
            compared += 1
        seconds = [each.seconds for each in priced]
        assert seconds == sorted(seconds)
    assert compared > 20


def test_what_cannot_be_resharded_is_no_alternative(plan):
    problem, result = plan.problem, plan.result
    for class_id, priced in alternatives(problem, result, range(4)).items():
        left_out = {*problem.strategies[class_id].all} - {each.strategy for each in priced}
        for strategy in left_out - {result.decisions.strategies[class_id]}:
            strategies = list(result.decisions.strategies)
            strategies[class_id] = strategy
            with pytest.raises(JaxcollError):
                estimate_cost(
                    problem, dataclasses.replace(result.decisions, strategies=tuple(strategies))
                )


def test_the_number_of_priced_strategies_is_bounded(plan):
    classes = range(len(plan.problem.graph.node_classes))
    counts = [len(plan.problem.strategies[g].all) - 1 for g in classes]
    some = alternatives(plan.problem, plan.result, classes, most=sum(counts[:3]))
    assert [*some] == [0, 1, 2]


def test_memory_is_that_of_the_plan(plan):
    memory = data_of(plan.html())["memory"]
    assert np.sum(memory["bytes"], axis=0).max() == pytest.approx(plan.cost.memory.peak, abs=2)
    assert memory["bytes"][0][0] == plan.cost.memory.inputs


def test_every_class_stands_there_with_its_work(plan, pipelined):
    data = data_of(plan.html())
    assert len(data["classes"]) == len(plan.problem.graph.node_classes)
    assert {"inputs", "forward"} < {each["phase"] for each in data["classes"]}
    assert any("dot_general" in each["name"] for each in data["classes"])
    assert all(each["why"] for each in data["classes"])
    assert "in each of 4 microbatches" in json.dumps(data_of(pipelined.html())["classes"])


def test_large_plans_are_thinned_and_the_page_says_so(plan, monkeypatch):
    monkeypatch.setattr(web_page, "MOST_CLASSES", 5)
    monkeypatch.setattr(web_page, "MOST_EVENTS", 3)
    monkeypatch.setattr(web_page, "MOST_POINTS", 2)
    page = plan.html()
    data, notes = data_of(page), re.findall(r"<p class=note>(.*?)</p>", page)
    assert (len(data["classes"]), len(data["events"])) == (5, 3)
    assert len(notes) == 3
    assert np.sum(data["memory"]["bytes"], axis=0).max() == pytest.approx(
        plan.cost.memory.peak, abs=2
    )


def test_notebooks_show_a_table(plan):
    text = plan._repr_html_()
    assert len(text) < 4000
    assert "script" not in text
    assert f"{100 * plan.gap:.2g} %" in text


def test_names_are_escaped(plan):
    page = plan.html(HOSTILE)
    assert "<img" not in page
    assert "&lt;img" in page
    assert page.count("</script>") == 2


@needs_chromium
def test_a_box_says_why(plan, tmp_path):
    found = look(
        plan.html("A plan"),
        """
        const before = byId("said").textContent;
        const one = classes.findIndex((c) => c.phase === "forward");
        boxes[one].dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
        const said = byId("said").textContent;
        boxes[0].dispatchEvent(new MouseEvent("click"));
        return { before, said, then: byId("said").textContent, boxes: boxes.length,
                 wires: wires.length, hacked: window.hacked || 0,
                 painted: byId("memory").getContext("2d").getImageData(300, 200, 1, 1).data[3] };
        """,
        tmp_path,
    )
    assert (found["faults"], found["requests"], found["console"]) == ([], [], [])
    assert found["hacked"] == 0
    assert found["before"].startswith("Operators and inputs")
    assert "Why: with another strategy here alone" in found["said"]
    assert len({found["before"], found["said"], found["then"]}) == 3
    assert found["boxes"] == len(plan.problem.graph.node_classes)
    assert found["wires"] > 5
    assert found["painted"] == 255
