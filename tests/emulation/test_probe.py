"""Networks of cables that measure themselves: they find the cables that were laid."""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxcoll as jc
from jaxcoll import topologies
from jaxcoll.emulation import emulate
from jaxcoll.errors import CollectiveError
from tests.emulation.test_emulation import needs_namespaces
from tests.execute.meshes.xla_flags import cpu_devices
from tests.probing.test_inference import cables_of, hosts

ONE_DEVICE = {"XLA_FLAGS": cpu_devices(1)}
WORKER = str(Path(__file__).with_name("probe_worker.py"))
RATE = 1_500_000


def probed(network: jc.Topology, folder: Path, capfd) -> tuple[jc.Topology, dict]:
    """The network that ``jaxcoll probe`` writes of an emulated one, and its answer in JSON."""
    path = str(folder / "found.json")
    command = [sys.executable, "-m", "jaxcoll", "probe", "--json", "-o", path]
    command += ["--", sys.executable, "-c", "import os; print(os.environ['JAXCOLL_NETWORK'])"]
    assert emulate(network, command, scale=1, environment=ONE_DEVICE) == 0
    lines = capfd.readouterr().out.splitlines()
    files = {line.partition("] ")[2] for line in lines if "jaxcoll-network-" in line}
    assert len(files) == network.num_ranks
    for file in files:
        assert jc.io.load(file) == jc.io.load(path)
        Path(file).unlink()
    said = [line.partition("] ")[2] for line in lines if "jaxcoll-network-" not in line]
    return jc.io.load(path), json.loads("\n".join(line for line in said if line[:1] in "{ }"))  # type: ignore[return-value]


@pytest.mark.slow
@needs_namespaces
def test_a_slow_cable_is_found(tmp_path, capfd):
    # An emulated cable gives some 6 kB away, which is little of a flow at this rate.
    truth = topologies.ring(3, alpha=0, bandwidth=2 * RATE).scaled({(1, 2): Fraction(1, 2)})
    paths = [str(tmp_path / name) for name in ("found.json", "backwards.json")]
    assert emulate(truth, [sys.executable, WORKER, *paths], environment=ONE_DEVICE) == 0
    assert "rank 1 to rank 2: " in capfd.readouterr().out
    expected, found, backwards = cables_of(truth), *(cables_of(jc.io.load(p)) for p in paths)  # type: ignore[arg-type]
    assert found.keys() == backwards.keys() == expected.keys()
    for (a, b), rate in expected.items():
        assert found[a, b] == pytest.approx(rate, rel=0.1)
        assert backwards[2 - a, 2 - b] == pytest.approx(rate, rel=0.1)


@pytest.mark.slow
@needs_namespaces
@pytest.mark.parametrize("slow", [Fraction(2, 3), None])
def test_a_torus_with_a_slow_cable_or_without_one(tmp_path, capfd, slow):
    torus = topologies.torus(2, 4, alpha=0, bandwidth=RATE)
    truth = torus.scaled({(5, 6): slow}) if slow else torus.without([(5, 6), (6, 5)])
    found, said = probed(truth, tmp_path, capfd)
    expected, cables = cables_of(truth), cables_of(found)
    assert cables.keys() == expected.keys()
    assert all(cables[pair] == pytest.approx(expected[pair], rel=0.1) for pair in cables)
    named = [text.partition(":")[0] for text in said["findings"]]
    assert named == ["rank 5 to rank 6"] + ["rank 6 to rank 5"] * (slow is None)
    assert said["seconds"] < 20


@pytest.mark.slow
@needs_namespaces
def test_hosts_and_their_uplinks(tmp_path, capfd):
    """Of two hosts; of four, ``tests.probing`` infers them from measurements without processes."""
    sizes = [4, 4]
    found, said = probed(hosts(sizes, Fraction(1, 2), rate=RATE), tmp_path, capfd)
    n = sum(sizes)
    groups = {
        tuple(np.flatnonzero(found.dst[found.src < n] == s)) for s in range(n, n + len(sizes))
    }
    assert {len(group) for group in groups} == {sizes[0]}
    uplinks = found.bandwidth[(found.src >= n) & (found.dst >= n)]
    assert uplinks == pytest.approx(np.full(len(uplinks), RATE / 2), rel=0.1)
    assert said["findings"] == []


@pytest.mark.slow
@needs_namespaces
def test_a_slow_port(tmp_path, capfd):
    truth = topologies.switch(8, alpha=0, bandwidth=RATE).scaled({(3, 8): Fraction(2, 3)})
    found, said = probed(truth, tmp_path, capfd)
    assert found.num_links == 16
    (text,) = said["findings"]
    assert text.startswith("rank 3 to the switch of ranks 0-7: ")


def test_one_process_has_no_links():
    with pytest.raises(CollectiveError, match=r"all \d+ devices belong to one process: there"):
        jc.probe()
    with pytest.raises(CollectiveError, match=r"takes a jax\.sharding\.Mesh, got 5"):
        jc.probe(5)  # type: ignore[arg-type]
    assert jax.process_count() == 1
