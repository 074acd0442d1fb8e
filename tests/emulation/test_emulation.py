"""Emulated networks: routes and speeds as asked for, values of JAX, and nothing left behind."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from fractions import Fraction
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll import emulation, topologies
from jaxcoll.emulation import Emulation, cluster, emulate
from jaxcoll.errors import JaxcollError, TopologyError
from tests import strategies
from tests.execute.meshes.xla_flags import cpu_devices
from tests.test_docs import blocks_of

TWO_SPEEDS = jc.Topology(
    3, np.asarray([0, 1, 1, 2]), np.asarray([1, 0, 2, 1]), np.zeros(4),
    np.asarray([1e6, 2e6, 3e6, 3e6]),
)  # fmt: skip


def can_emulate() -> bool:
    try:
        emulation._check_tools()
    except JaxcollError:
        return False
    return True


needs_namespaces = pytest.mark.skipif(not can_emulate(), reason="no namespaces or tools here")


def namespaces() -> str:
    """What would be seen of an emulation that left something."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True)
    return listed.stdout + str(os.path.exists("/run/jaxcoll"))


@given(strategies.topologies(2, 9, switches=True, parallel=True))
def test_routes_are_the_shortest_along_links(topology):
    plan: Any = emulation._cables(Emulation(topology, Fraction(1), False, True))
    graph = nx.DiGraph(list(zip(topology.src.tolist(), topology.dst.tolist(), strict=True)))
    distance = dict(nx.all_pairs_shortest_path_length(graph))
    for v in range(topology.num_vertices):
        for rank in range(topology.num_ranks):
            if v == rank:
                continue
            hop = plan["next"][v][rank]
            assert graph.has_edge(v, hop)
            assert distance[hop][rank] == distance[v][rank] - 1
    pairs = {(min(a, b), max(a, b)) for a, b in graph.edges}
    assert [(a, b) for a, b, *_ in plan["cables"]] == sorted(pairs)


@given(strategies.topologies(2, 9, homogeneous=False), st.floats(1e-6, 1))
def test_a_scale_slows_everything_alike(topology, scale):
    made = Emulation.of(topology, scale)
    assert float(made.scale) == pytest.approx(scale)
    for nbytes in (1, 10**6):
        before = jc.bound(topology, "all_gather", nbytes=nbytes).time
        assert jc.bound(made.network, "all_gather", nbytes=nbytes).time == pytest.approx(
            before / scale
        )


def test_what_the_cores_cannot_carry_is_slowed_down():
    fast = Emulation.of(topologies.dgx_h100(1))
    ranks = fast.network.src < 8
    most = emulation.BYTES_PER_CORE * (os.cpu_count() or 1)
    assert fast.network.bandwidth[ranks].sum() == pytest.approx(most)
    slow = topologies.ring(4, bandwidth=1e6)
    assert Emulation.of(slow).network is slow


@needs_namespaces
@pytest.mark.parametrize("has_classes", [True, False])
def test_every_rank_has_its_place_and_cables_their_speeds(has_classes, capfd):
    made = Emulation.of(TWO_SPEEDS)
    if has_classes and not made.has_classes:
        pytest.skip("no htb or no u32 here")
    before = namespaces()
    script = (
        'echo "$JAXCOLL_RANK of $JAXCOLL_RANKS on $OMPI_COMM_WORLD_RANK";'
        "for d in $(ip -o link | cut -d: -f2 | cut -d@ -f1);"
        'do tc class show dev $d | grep root | grep -o "rate [0-9A-Za-z]*"; done;'
        'tc qdisc show | grep -o "rate [0-9A-Za-z]*";'
        'cat "$JAXCOLL_NETWORK";'
        "getent hosts $(hostname)"
    )
    made = dataclasses.replace(made, has_classes=has_classes)
    assert ("acknowledgements wait" in " ".join(made.differences())) != has_classes
    assert made.run(["sh", "-c", script]) == 0
    printed = capfd.readouterr().out
    by_rank = {r: re.findall(rf"^\[{r}\] (.*)$", printed, re.M) for r in range(3)}
    for rank, lines in by_rank.items():
        assert f"{rank} of 3 on {rank}" in lines
        assert any(line.startswith(f"10.77.0.{rank + 1} ") for line in lines)
        network = "\n".join(lines[lines.index("{") :]) if "{" in lines else " ".join(lines)
        assert '"jaxcoll.topology' in network or "bandwidth" in network
    # 1, 2 and 3 MB/s with heads of frames and acknowledgements, in bits; tc rounds its numbers.
    rates = [re.findall(r"rate (\d+)(\w+)", " ".join(by_rank[rank])) for rank in range(3)]
    kilobits = [
        sorted(round(int(n) / (1 if unit == "Kbit" else 1e3)) for n, unit in r) for r in rates
    ]
    wanted = [round(speed * 8 / 1e3 * (1514 + 33) / 1448) for speed in (1e6, 2e6, 3e6)]
    for found, speeds in zip(kilobits, ([0], [1, 2], [2]), strict=True):
        assert found == pytest.approx([wanted[k] for k in speeds], rel=0.01)
    assert namespaces() == before


def test_the_slowest_route_is_that_of_most_delay():
    line = topologies.mesh(6, alpha=1e-3, bandwidth=1e6)
    plan = json.loads(json.dumps(emulation._cables(Emulation(line, Fraction(1), True, True))))
    assert cluster._longest_delay(plan) == pytest.approx(5e-3)


@needs_namespaces
def test_a_rank_that_fails_ends_the_others(capfd):
    before, begun = namespaces(), time.monotonic()
    script = "test $JAXCOLL_RANK = 1 && exit 7; exec sleep 200"
    assert emulate(topologies.ring(3, bandwidth=1e6), ["sh", "-c", script]) == 7
    assert time.monotonic() - begun < 100
    assert "rank 1 ended with status 7" in capfd.readouterr().out
    assert namespaces() == before


@needs_namespaces
def test_tools_are_found_where_the_path_has_them_not(monkeypatch, capfd):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert emulate(topologies.ring(2, bandwidth=1e6), ["sh", "-c", "echo $PATH"]) == 0
    assert capfd.readouterr().out.count("] /usr/bin:/bin\n") == 2


@needs_namespaces
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_its_end(number):
    before = namespaces()
    code = (
        "from jaxcoll import topologies\nfrom jaxcoll.emulation import emulate\n"
        "emulate(topologies.ring(2, bandwidth=1e6), ['sh', '-c', 'echo up; exec sleep 321.5'])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert "up" in process.stdout.readline()
    os.killpg(process.pid, number)
    process.wait(60)
    for _ in range(100):
        left = subprocess.run(["pgrep", "-f", "sleep 321[.]5"], capture_output=True, text=True)
        if not left.stdout:
            break
        time.sleep(0.1)
    assert not left.stdout
    assert namespaces() == before


@needs_namespaces
@pytest.mark.slow
def test_jax_finds_its_processes_and_adds_over_the_cables(tmp_path, capfd):
    program = tmp_path / "train.py"
    program.write_text(
        """
import json, os
import jax
jax.distributed.initialize()
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P
import jaxcoll as jc
network = jc.io.load(os.environ["JAXCOLL_NETWORK"])
mesh = Mesh(np.array(jax.devices()), ("i",))
x = jax.make_array_from_callback(
    (4 * 64,), jax.NamedSharding(mesh, P("i")), lambda index: np.arange(256.0)[index])
def total(by):
    step = jax.shard_map(lambda v: by.psum(v, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
    return np.asarray(jax.jit(step)(x).addressable_data(0))
with jc.use_topology(network):
    ours = total(jc)
equal = bool((ours == total(jax.lax)).all())
print(json.dumps([jax.process_index(), jax.process_count(), equal]))
"""
    )
    command = [sys.executable, str(program)]
    network = topologies.ring(4, bandwidth=1e6)
    assert emulate(network, command, environment={"XLA_FLAGS": cpu_devices(1)}) == 0
    printed = capfd.readouterr().out
    found = sorted(
        json.loads(row) for row in re.findall(r"^\[\d\] (\[\d, \d, \w+\])$", printed, re.M)
    )
    assert found == [[rank, 4, True] for rank in range(4)]


@needs_namespaces
@pytest.mark.slow
def test_the_page_runs_as_printed(tmp_path, capfd):
    (code,) = blocks_of("emulation.md")
    program = tmp_path / "train.py"
    program.write_text(code.replace("<< 18", "<< 10"))
    command = [sys.executable, str(program)]
    network = topologies.ring(3, bandwidth=1e6)
    assert emulate(network, command, environment={"XLA_FLAGS": cpu_devices(1)}) == 0
    printed = capfd.readouterr().out
    line = r"^\[0\] lax [\d.]+ s, default [\d.]+ s, predicted [\d.]+ s, runs \S+"
    assert len(re.findall(line, printed, re.M)) == 1


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: emulate("torus", ["true"]), "topology must be"),  # type: ignore[arg-type]
        (lambda: Emulation.of(TWO_SPEEDS, 2), "at most 1, got 2"),
        (lambda: Emulation.of(TWO_SPEEDS, 0), "scale"),
        (lambda: Emulation.of(topologies.ring(4000)), "this machine has"),
        (lambda: emulate(TWO_SPEEDS, []), "no command"),
        (lambda: emulate(TWO_SPEEDS, ["no-such-program"]), "no program 'no-such-program'"),
    ],
)
def test_refusals(call, said):
    with pytest.raises(TopologyError, match=said):
        call()


def test_missing_tools_are_named(monkeypatch):
    monkeypatch.setattr(emulation.shutil, "which", lambda name, path=None: None if path else name)
    with pytest.raises(TopologyError, match=r"program ip; install iproute2"):
        emulate(TWO_SPEEDS, ["true"])


_MEASURES = """
import jax, numpy as np
jax.distributed.initialize()
import jaxcoll as jc
from jax.sharding import Mesh
costs = jc.measure_execution(Mesh(np.array(jax.devices()), ("i",)), seconds=5)
print("found", costs.order, costs.native_order, costs.half_duplex, costs.shared, costs.source)
"""


@pytest.mark.slow
@needs_namespaces
def test_processes_find_the_order_of_their_permutes_on_cables(capfd):
    ring = topologies.ring(3, bandwidth=50e6 / 8, alpha=0)
    environment = {"XLA_FLAGS": cpu_devices(1)}
    command = [sys.executable, "-c", _MEASURES]
    assert emulate(ring, command, environment=environment) == 0
    found = re.findall(r"found (.*)$", capfd.readouterr().out, re.M)
    # Schedules are played over the links there, and permutes, so jax.lax's, come in rounds.
    source = "measured between 3 ranks on 3 hosts; per byte as shipped"
    assert found == [f"links rounds True False {source}"] * 3
