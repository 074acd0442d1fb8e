"""The timeline of an iteration: what must hold of any workload, closed forms, and by hand."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.study import ConfigError
from experiments.workloads import Exchange, Iteration, Layer, Overlap, Workload, iteration
from experiments.workloads.timeline import plan_buckets

NONE, LAYERS = Overlap("none"), Overlap("layers")
EVERYTHING = Overlap("buckets", bucket_bytes=math.inf)

durations = st.integers(0, 8).map(Fraction)
sizes = st.integers(1, 8)


def exchanges(group: str):
    return st.none() | sizes.map(lambda nbytes: Exchange(group, nbytes))


@st.composite
def workloads(draw, activations: bool = True) -> Workload:
    sent = exchanges("model") if activations else st.none()
    reduced = exchanges("data") | exchanges("all")
    layer = st.builds(Layer, st.just("x"), durations, durations, durations, sent, reduced)
    first, *others = draw(st.lists(layer, min_size=1, max_size=6))
    return Workload("any", (dataclasses.replace(first, input_gradient=Fraction(0)), *others))


def overlaps():
    return st.builds(
        Overlap,
        st.sampled_from(["none", "layers", "buckets"]),
        st.integers(1, 30),
        st.sampled_from(["fifo", "needed_first"]),
    )


def affine(alpha: int, beta: int) -> dict[str, Callable[[int], Fraction]]:
    """Times that grow with size, as those of a collective do."""
    groups: tuple[str, ...] = ("all", "data", "model")
    return {group: lambda nbytes: Fraction(alpha + beta * nbytes) for group in groups}


TIMES = affine(2, 1)


@given(workloads(), overlaps())
def test_an_iteration_is_compute_and_what_it_does_not_hide(work, overlap):
    run = iteration(work, TIMES, overlap)
    assert run.compute == work.compute
    assert run.total == run.compute + run.exposed
    assert run.total >= max(run.compute, run.communication)
    assert run.total <= run.compute + run.communication
    assert 0 <= run.hidden <= run.compute


@given(workloads())
def test_nothing_is_hidden_without_overlap(work):
    run = iteration(work, TIMES, NONE)
    assert run.total == run.compute + run.communication
    assert run.hidden == 0


@given(workloads(), overlaps())
def test_every_exchange_is_served_once(work, overlap):
    """The network is busy for activations twice, but the first layer's once, and the buckets."""
    run = iteration(work, TIMES, overlap)
    seconds = Fraction(0)
    for place, layer in enumerate(work.layers):
        if layer.activations:
            seconds += (1 + (place > 0)) * TIMES["model"](layer.activations.nbytes)
    for bucket in plan_buckets(work, overlap):
        gradients = [g for place in bucket if (g := work.layers[place].gradient)]
        seconds += TIMES[gradients[0].group](sum(g.nbytes for g in gradients))
    assert run.communication == seconds


@given(workloads(activations=False), st.sampled_from(["fifo", "needed_first"]))
def test_one_bucket_for_everything_is_no_overlap(work, order):
    together = dataclasses.replace(EVERYTHING, order=order)
    one_bucket = len(plan_buckets(work, together)) == 1
    if one_bucket and work.layers[0].gradient:  # complete when the backward pass is
        assert iteration(work, TIMES, together) == iteration(work, TIMES, NONE)


@given(workloads(), st.sampled_from(["fifo", "needed_first"]))
def test_the_smallest_buckets_are_layers(work, order):
    smallest = Overlap("buckets", bucket_bytes=1, order=order)
    by_layer = Overlap("layers", order=order)
    assert iteration(work, TIMES, smallest) == iteration(work, TIMES, by_layer)


@given(durations, durations, sizes, overlaps())
def test_one_layer_in_closed_form(forward, weight_gradient, nbytes, overlap):
    layer = Layer("x", forward, Fraction(0), weight_gradient, gradient=Exchange("all", nbytes))
    run = iteration(Workload("one", (layer,)), TIMES, overlap)
    seconds = TIMES["all"](nbytes)
    assert run == Iteration(
        total=forward + weight_gradient + seconds,
        compute=forward + weight_gradient,
        communication=seconds,
        waiting_for_activations=Fraction(0),
        waiting_for_gradients=seconds,
    )


@given(workloads(activations=False), overlaps())
def test_a_network_without_latency_or_bytes_costs_nothing(work, overlap):
    assert iteration(work, affine(0, 0), overlap).total == work.compute


@given(workloads(activations=False), overlaps())
def test_a_slower_network_is_never_quicker_in_order(work, overlap):
    overlap = dataclasses.replace(overlap, order="fifo")
    assert (
        iteration(work, affine(2, 1), overlap).total <= iteration(work, affine(3, 2), overlap).total
    )


@given(workloads(activations=False))
def test_with_equal_layers_overlap_is_the_pipeline_of_the_two(work):
    """n identical layers: the backward pass and the network as two machines of a flow shop."""
    layer = dataclasses.replace(
        work.layers[0], gradient=Exchange("all", 3), weight_gradient=Fraction(4)
    )
    n = len(work.layers)
    run = iteration(Workload("identical", (layer,) * n), TIMES, LAYERS)
    back, seconds = layer.weight_gradient, TIMES["all"](3)
    end = back + (n - 1) * max(back, seconds) + seconds
    assert run.total == end + n * layer.forward


def gradients(forward, weight_gradient, nbytes, name="x"):
    passes = Fraction(forward), Fraction(0), Fraction(weight_gradient)
    return Layer(name, *passes, gradient=Exchange("all", nbytes))


def test_by_hand_in_order_of_arrival():
    """Back: last layer 0-1, first 1-2; network: 1-11, 11-13; forward 13-14, 14-15."""
    work = Workload("two", (gradients(1, 1, 2), gradients(1, 1, 10)))
    run = iteration(work, affine(0, 1), LAYERS)
    assert (run.total, run.waiting_for_gradients) == (15, 11)


def test_by_hand_with_what_is_needed_first():
    """Backward 3, 2, 1, 0: at 4 layer 3's still runs; then 0, 1, 2 overtake by need."""
    work = Workload("four", tuple(gradients(2, 1, 3) for _ in range(4)))
    times = affine(0, 1)
    first_come = iteration(work, times, LAYERS)
    # 3: 1-4, 2: 4-7, 1: 7-10, 0: 10-13, then 8 of forward.
    assert first_come.total == 21
    needed = iteration(work, times, dataclasses.replace(LAYERS, order="needed_first"))
    # 3: 1-4. At 4 layers 2, 1 and 0 wait: 0: 4-7, 1: 7-10, 2: 10-13. Forward: 7, 10, 13, 15.
    assert needed.total == 17


def test_activations_hold_the_next_layer_up_and_gradients_run_beside():
    """The last layer's input gradient is exchanged beside its own weights', before the first's."""
    first = Layer("a", Fraction(1), Fraction(0), Fraction(1), gradient=Exchange("data", 1))
    last = Layer("b", Fraction(1), Fraction(2), Fraction(3), Exchange("model", 5))
    run = iteration(Workload("two", (first, last)), affine(0, 1), LAYERS)
    # Input gradient 0-2, exchanged 2-7 beside 2-5; first: 7-8, reduced 8-9; forward 9-10, 10-11,
    # and its activations 11-16.
    assert run.total == 16
    assert (run.waiting_for_activations, run.waiting_for_gradients) == (2 + 5, 1)


def test_buckets_fill_from_the_last_layer_and_keep_groups_apart():
    zero = Fraction(0)
    sent = [("data", 4), None, ("data", 3), ("all", 9), ("data", 3), ("data", 8), ("data", 1)]
    layers = tuple(
        Layer("x", zero, zero, zero, gradient=Exchange(*each) if each else None) for each in sent
    )
    work = Workload("seven", layers)
    assert plan_buckets(work, Overlap("buckets", 8)) == [(6,), (5,), (4, 2), (3,), (0,)]
    assert plan_buckets(work, EVERYTHING) == [(6, 5, 4, 2, 0), (3,)]
    assert len(plan_buckets(work, LAYERS)) == 6


def test_bad_input_is_refused():
    with pytest.raises(ConfigError, match=r"unknown overlap.kind 'some'"):
        Overlap("some")
    with pytest.raises(ConfigError, match="bucket_bytes must be at least 1"):
        Overlap("buckets", 0)
    with pytest.raises(ConfigError, match=r"the group 'all', which has no times; there are model"):
        iteration(Workload("x", (gradients(1, 1, 1),)), {"model": TIMES["model"]}, LAYERS)
