"""The page of a plan: its numbers are those of the plan, and it is alive in a browser."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections import defaultdict

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec

from jaxcoll.errors import JaxcollError
from tensorstate import AlphaBetaCosts, MeshShape, search, solve_baseline
from tensorstate.cost.cost import estimate_cost
from tensorstate.errors import PlanError
from tensorstate.report import web_page
from tensorstate.report.alternatives import alternatives
from tensorstate.report.dearest import peak_buffers, sendings
from tensorstate.report.layers import Layers
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


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        width = x.shape[-1]
        return x + nn.Dense(width, name="down")(nn.relu(nn.Dense(2 * width, name="up")(x)))


class Network(nn.Module):
    @nn.compact
    def __call__(self, x):
        for k in range(2):
            x = Block(name=f"block_{k}")(x)
        return nn.Dense(16, name="head")(x)


def planned_modules(width: int, hardware: str):
    """The plan of a network of modules, with the state of an optimizer."""
    network, optimizer = Network(), optax.adam(1e-3)

    def train(params, state, x):
        def loss(params):
            y = network.apply(params, x)
            return (y * y).mean()  # type: ignore[union-attr]

        gradients = jax.grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    x = jax.ShapeDtypeStruct((16 * width, width), jnp.float32)
    params = jax.eval_shape(network.init, jax.random.key(0), x)
    arguments = params, jax.eval_shape(optimizer.init, params), x
    return search(train, arguments, mesh=MESH, network=NETWORK, hardware=hardware)


@pytest.fixture(scope="module")
def modular():
    return planned_modules(64, "CPU")


@pytest.fixture(scope="module")
def overlapping():
    return planned_modules(512, "H100")


def plans_of(page: str) -> list[dict]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])["plans"]


def data_of(page: str) -> dict:
    (of_plan,) = plans_of(page)
    return of_plan


@pytest.mark.parametrize("which", ["plan", "pipelined"])
def test_layers_add_up_to_the_plan(which, request):
    plan = request.getfixturevalue(which)
    layers, cost = data_of(plan.html())["layers"], plan.cost

    def total(key):
        return math.fsum(layer[key] for layer in layers)

    assert total("compute") == pytest.approx(cost.compute, rel=1e-12)
    assert total("communication") == pytest.approx(cost.communication, rel=1e-12)
    assert total("bytes") == cost.memory.inputs


@pytest.mark.parametrize("which", ["modular", "pipelined", "overlapping"])
def test_the_dearest_collectives_and_the_others_add_up(which, request):
    plan = request.getfixturevalue(which)
    data = data_of(plan.html())
    seconds = [each["seconds"] for each in data["collectives"]]
    assert 0 < len(seconds) <= web_page.MOST_SENDINGS
    assert seconds == sorted(seconds, reverse=True)
    others = data["others"]
    sent = math.fsum(seconds) + others["seconds"]
    assert sent == pytest.approx(plan.cost.communication, rel=1e-12)
    counted = sum(each["count"] for each in data["collectives"]) + others["count"]
    assert counted == sum(plan.cost.count_by_collective.values())
    assert all(" by " in each["why"] for each in data["collectives"])
    every = sendings(plan.problem, plan.result, Layers(plan.problem, plan.result), plan.timeline)
    waited = math.fsum(each.exposed for each in every)
    assert waited == pytest.approx(math.fsum(plan.timeline.exposed_of.values()))


@pytest.mark.parametrize("which", ["plan", "pipelined", "overlapping"])
def test_the_buffers_add_up_to_the_peak(which, request):
    plan = request.getfixturevalue(which)
    data = data_of(plan.html())
    live = math.fsum(each["bytes"] for each in data["buffers"]) + data["smaller"]["bytes"]
    assert live == pytest.approx(plan.cost.memory.peak, abs=1)  # which is rounded up
    by_category: dict[str, float] = defaultdict(float)
    for each in peak_buffers(plan.problem, plan.result, Layers(plan.problem, plan.result)):
        by_category[each.category] += each.nbytes
    for category in ("inputs", "saved", "gradients"):
        expected = getattr(plan.cost.memory, category)
        assert by_category[category] == pytest.approx(expected, abs=1)


@pytest.mark.parametrize("which", ["plan", "overlapping", "modular"])
def test_pictures_are_the_shardings(which, request):
    plan = request.getfixturevalue(which)
    data, specs = data_of(plan.html()), plan.specs.arguments
    leaves = jax.tree.leaves(specs, is_leaf=lambda x: isinstance(x, PartitionSpec))
    by_name = {
        plan.graph.tensors[i].name: s for i, s in zip(plan.graph.inputs, leaves, strict=True)
    }
    pictured = 0
    for layer in data["layers"]:
        for array in layer["parameters"]:
            axes = [tuple(data["axes"][a] for a in cut) for cut in array["cuts"]]
            spec = tuple(c[0] if len(c) == 1 else c or None for c in axes)
            expected = by_name[array["name"]]
            assert spec == (*expected, *[None] * (len(spec) - len(expected)))
            pictured += 1
    assert pictured >= 2


def test_layers_have_the_names_of_the_model(modular):
    data = data_of(modular.html())
    names = [layer["name"] for layer in data["layers"]]
    assert names[:3] == ["inputs of the step", "block_*/up", "block_*/down"]
    assert set(names[3:]) <= {"block_*", "head", "the rest of the step"}
    counts = {layer["name"]: layer["count"] for layer in data["layers"]}
    assert counts["block_*/up"] == 2
    # Operators of the backward pass and of the optimizer stand with their layer, too.
    of_up = [each for each in data["classes"] if each["layer"] == "block_*/up"]
    assert {each["phase"] for each in of_up} == {"inputs", "forward", "backward", "optimizer"}


def test_layers_that_differ_have_no_common_name():
    params = {str(k): {"w": jax.ShapeDtypeStruct((64, 64), jnp.float32)} for k in range(3)}
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)

    def layered(params, x):
        def loss(params):
            y = x
            for layer in params.values():
                y = jnp.tanh(y @ layer["w"])
            return jnp.mean(y**2)

        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))

    asked = {"mesh": MESH, "network": NETWORK, "hardware": "CPU"}
    pin = {"params/1/w": ("data", None), "params/0/w": (), "params/2/w": ()}
    plan = search(layered, (params, x), pin=pin, **asked)
    layers = data_of(plan.html())["layers"]
    assert {"0", "1", "2"} <= {layer["name"] for layer in layers}
    # Of a model without modules products of the backward pass are of the weight whose gradient
    # they make.
    (middle,) = (layer for layer in layers if layer["name"] == "1")
    classes = data_of(plan.html())["classes"]
    products = [classes[c]["phase"] for c in middle["classes"] if "dot" in classes[c]["name"]]
    assert sorted(products) == ["backward", "backward", "forward"]


def test_two_plans_stand_side_by_side(plan):
    other = solve_baseline(plan.problem, "fsdp")
    page = plan.html("Two", other=other, names=("searched", HOSTILE))
    first, second = plans_of(page)
    assert (first["name"], second["name"]) == ("searched", HOSTILE)
    assert first["seconds"] == plan.timeline.seconds
    assert second["seconds"] == other.timeline.seconds
    assert first["facts"].keys() == second["facts"].keys()
    assert "<img" not in page


@pytest.mark.parametrize(
    "wrong",
    [{"other": 3}, {"names": "ab"}, {"names": ("a",)}, {"names": ("a", 3)}, {"title": 3}],
    ids=str,
)
def test_what_is_no_plan_is_refused(plan, wrong):
    with pytest.raises(PlanError):
        plan.html(**{"other": plan} | wrong)


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
def test_a_click_leads_to_operators_and_their_prices(modular, tmp_path):
    plan = modular
    found = look(
        plan.html(HOSTILE),
        """
        const own = plans[0], said = () => byId("said").textContent, before = said();
        const links = [...document.querySelectorAll("#layers .link")];
        links[1].click();
        const layer = said();
        [...byId("said").querySelectorAll(".link")].pop().click();
        const operator = said();
        const one = own.classes.findIndex((c) => c.phase === "forward");
        own.boxes[one].dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
        const box = said();
        document.querySelector("#collectives .link").click();
        const pen = document.querySelector("#memories canvas").getContext("2d");
        return { before, layer, operator, box, sent: said(), boxes: own.boxes.length,
                 wires: own.wires.length, hacked: window.hacked || 0, layers: links.length,
                 pictures: document.querySelectorAll("#layers figure svg rect").length,
                 painted: pen.getImageData(300, 200, 1, 1).data[3] };
        """,
        tmp_path,
    )
    data = data_of(plan.html())
    assert (found["faults"], found["requests"], found["console"]) == ([], [], [])
    assert found["hacked"] == 0
    assert found["before"].startswith("What to choose")
    assert "the price of other shardings" in found["layer"]
    for said in (found["operator"], found["box"], found["sent"]):
        assert "Why: with another strategy here alone" in said
    assert found["boxes"] == len(plan.problem.graph.node_classes)
    assert found["layers"] == len(data["layers"])
    assert found["pictures"] > found["layers"]
    assert found["wires"] > 5
    assert found["painted"] == 255


@needs_chromium
def test_two_plans_have_a_column_each(plan, tmp_path):
    other = solve_baseline(plan.problem, "fsdp")
    found = look(
        plan.html("Two plans", other=other, names=("searched", "fsdp")),
        """
        const titles = (id) =>
          [...document.querySelectorAll(`#${id} h3`)].map((h) => h.textContent);
        return { titles: ["collectives", "times", "memories"].map(titles),
                 facts: document.querySelectorAll("#facts tr")[1].children.length,
                 columns: document.querySelector("#layers tr").children.length };
        """,
        tmp_path,
    )
    assert (found["faults"], found["requests"], found["console"]) == ([], [], [])
    assert found["titles"] == [["searched", "fsdp"]] * 3
    assert (found["facts"], found["columns"]) == (3, 5)
