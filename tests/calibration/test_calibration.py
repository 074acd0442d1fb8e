"""Links that are fitted to times of a network are those of the network, and errors are told."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest

import jaxcoll as jc
from jaxcoll.calibration.fit import with_links
from jaxcoll.errors import AssumptionWarning
from jaxcoll.io import timings
from jaxcoll.io.timings import Timing, Timings

SIZES = tuple(4**i for i in range(5, 17))


def measured(
    network, kind="all_reduce", name: str | None = "ring", sizes=SIZES, noise=0.0, chunks=None
):
    """A log of a network's own times; of NCCL's where ``name`` is None."""
    dice, rows = np.random.default_rng(0), []
    for size in sizes:
        made = jc.synthesize(network, kind, name or "auto", nbytes=size, chunks=chunks)
        seconds = jc.simulate(made, size).time * np.exp(noise * dice.standard_normal())
        rows.append(Timing(kind, network.num_ranks, size, float(seconds), name, chunks))
    return Timings(tuple(rows))


def quiet(*arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error", AssumptionWarning)
        return jc.calibrate(*arguments, **options)


def test_the_links_of_a_ring_are_found():
    true = jc.topologies.ring(4, alpha=3e-6, bandwidth=36e9)
    found = quiet(measured(true, chunks=2), jc.topologies.ring(4))
    (links,) = found.classes
    assert links.alpha == pytest.approx(3e-6, rel=0.005)
    assert links.bandwidth == pytest.approx(36e9, rel=0.005)
    assert (links.alpha_seen, links.bandwidth_seen) == (True, True)
    assert all(abs(each.error) < 0.005 for each in found.held_out)
    assert found.topology.bandwidth == pytest.approx(links.bandwidth)
    # Those that are held out are not among those that are fitted.
    assert found.fitted + len(found.held_out) == len(SIZES)


def test_prices_of_auto_are_the_measured_times():
    """By a log that does not say what ran, on a network that is assumed three times as fast."""
    true = jc.topologies.switch(3, alpha=4e-6, bandwidth=30e9)
    log = measured(true, "all_gather", None, SIZES[1::2], noise=0.01)
    found = quiet(log, jc.topologies.switch(3, alpha=1e-6, bandwidth=90e9))
    for row in log.rows:
        made = jc.synthesize(found.topology, row.collective, nbytes=row.nbytes)
        promised = 0.05 if row.nbytes >= 64e6 else 0.1
        assert jc.simulate(made, row.nbytes).time == pytest.approx(row.seconds, rel=promised)
    assert found.worst(1e6) == found.held_out[0]
    assert found.worst(1e15) is None


def two_kinds(alphas=(1e-6, 5e-6), bandwidths=(100e9, 10e9)):
    """Two pairs of ranks, joined by slower links."""
    wires = [(0, 1, 0), (2, 3, 0), (0, 2, 1), (1, 3, 1)]
    both = [(u, v, kind) for a, b, kind in wires for u, v in ((a, b), (b, a))]
    src, dst, kinds = zip(*both, strict=True)
    place = np.asarray(kinds)
    alpha, bandwidth = np.asarray(alphas)[place], np.asarray(bandwidths)[place]
    return jc.Topology(4, np.asarray(src), np.asarray(dst), alpha, bandwidth)


def test_two_classes_of_links_by_two_collectives():
    true = two_kinds((2e-6, 9e-6), (60e9, 8e9))
    logs = [
        measured(true, kind, name, chunks=1)
        for kind, name in (("all_gather", "bfb"), ("all_to_all", "direct"))
    ]
    found = quiet(logs, two_kinds())
    slow, fast = sorted(found.classes, key=lambda each: each.bandwidth)
    assert slow.bandwidth == pytest.approx(8e9, rel=0.05)
    assert fast.links == slow.links == 4
    again = found.on(two_kinds())
    assert again == found.topology
    with pytest.raises(jc.errors.TopologyError, match="were not in the network"):
        found.on(jc.topologies.ring(4, alpha=1e-7, bandwidth=1e9))


def test_what_no_time_depends_on_stays():
    """The spare links are so slow that nothing crosses them."""
    spare = jc.Topology(
        3, np.asarray([0, 1, 1, 2, 2, 0, 0, 2]), np.asarray([1, 0, 2, 1, 0, 2, 2, 0]),
        np.asarray([1e-6] * 6 + [1e-3] * 2), np.asarray([50e9] * 6 + [1e6] * 2),
    )  # fmt: skip
    true = with_links(spare, spare.speeds[1], np.asarray([[3e-6, 20e9], [1e-3, 1e6]]))
    found = quiet(measured(true, "all_gather", "tacos", chunks=1), spare)
    used, unused = found.classes
    assert used.bandwidth == pytest.approx(20e9, rel=0.01)
    assert (unused.alpha_seen, unused.bandwidth_seen) == (False, False)
    assert (unused.alpha, unused.bandwidth) == unused.assumed
    assert "not seen" in str(unused)


def test_a_log_of_two_protocols_is_told(tmp_path):
    rows = measured(jc.topologies.ring(4, alpha=1e-6, bandwidth=40e9), chunks=2).rows
    slow = [dataclasses.replace(r, seconds=r.seconds * (9 if r.nbytes < 2e7 else 1)) for r in rows]
    path = tmp_path / "log.json"
    timings.save(path, slow)
    with pytest.warns(AssumptionWarning, match=r"held-out sizes are off .* \(\S+ %\)"):
        jc.calibrate(path, jc.topologies.ring(4))
    assert quiet(path, jc.topologies.ring(4), least=2e7).worst(64e6) is not None


def test_few_sizes_and_torn_rows_are_told():
    rows = measured(jc.topologies.ring(4), sizes=(2**10, 2**20)).rows
    with pytest.warns(AssumptionWarning, match="no size from 1 MB"):
        jc.calibrate(Timings(rows), jc.topologies.ring(4))
    log = Timings(measured(jc.topologies.ring(4)).rows, torn=3)
    with pytest.warns(AssumptionWarning, match="3 rows"):
        assert jc.calibrate(log, jc.topologies.ring(4)).torn == 3


def test_without_a_network_it_is_a_switch():
    true = jc.topologies.switch(4, alpha=2e-6, bandwidth=20e9)
    found = quiet(measured(true, "all_gather", "direct"))
    assert found.topology.num_vertices == 5
    assert found.topology.bandwidth == pytest.approx(20e9, rel=0.01)


@pytest.mark.parametrize(
    ("log", "network", "words"),
    [
        ([], None, "empty list"),
        (5, None, "log must be"),
        (Timings((Timing("all_reduce", 4, 8, 1.0),)), jc.topologies.ring(8), "8 ranks"),
        (Timings((Timing("all_reduce", 4, 8, 1.0),)), None, "two or more sizes"),
        (Timings((Timing("all_reduce", 1, 8, 1.0), Timing("reduce", 1, 9, 1.0))), None, "from 2"),
        (
            Timings((Timing("all_reduce", 4, 8, 1.0, "rings"), Timing("reduce", 4, 9, 1.0))),
            None,
            "the synthesizer of a log must be one of",
        ),
    ],
)
def test_other_logs_are_refused(log, network, words):
    with pytest.raises(jc.errors.FormatError, match=words):
        jc.calibrate(log, network)
