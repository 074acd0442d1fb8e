"""Fabrics of InfiniBand: cables at both ends, speeds, hosts by their adapters, ranks on ports."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll.errors import AssumptionWarning, FormatError, TopologyError
from jaxcoll.io import ibnetdiscover
from tests.cli.calls import called, refused
from tests.io.mutations import refuses
from tests.io.networks import printed

pytestmark = pytest.mark.filterwarnings("ignore::jaxcoll.errors.AssumptionWarning")
FABRIC = printed.leaf_spine(2, 2, 1)


def links(topology: jc.Topology) -> Counter[tuple[str, str, float]]:
    names = topology.vertex_names
    ends = zip(
        topology.src.tolist(), topology.dst.tolist(), topology.bandwidth.tolist(), strict=True
    )
    return Counter((names[a], names[b], speed) for a, b, speed in ends)


@pytest.mark.parametrize("spines", [1, 2])
def test_leaves_and_spines_are_those_of_the_family(spines):
    """Of four hosts on each leaf and two cables to every spine, in times of a bound."""
    made = ibnetdiscover.loads(printed.leaf_spine(3, 4, spines))
    family = jc.topologies.leaf_spine(3, 4, spines, bandwidth=50e9)
    assert (made.num_ranks, made.num_vertices) == (12, 12 + 3 + spines)
    found = links(made)
    assert found["host n0", "MF0;leaf0:MQM9700/U1", 50e9] == 1
    assert found["MF0;leaf2:MQM9700/U1", "MF0;spine0:MQM9700/U1", 100e9] == 1
    assert made.num_links == family.num_links


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=12),
    st.sampled_from(sorted(ibnetdiscover.LANE)), st.sampled_from([1, 2, 4, 8, 12]),
)  # fmt: skip
def test_every_cable_is_a_link_both_ways(pairs, lane, width):
    """Of random cables between four hosts and three switches, one of which joins all."""
    pairs = [*pairs, *((h, 0) for h in range(4))]
    described = {f"S-{s}": f"sw{s}" for s in range(3)} | {
        f"H-1{h}": f"n{h} HCA-1" for h in range(4)
    }
    cables = [((f"H-1{h}", i + 1), (f"S-{s}", i + 1)) for i, (h, s) in enumerate(pairs)]
    made = ibnetdiscover.loads(printed.ibnetdiscover(described, cables, f"{width}x{lane}"))
    speed = width * ibnetdiscover.LANE[lane] * 1e9 / 8
    one_way = Counter((f"host n{h}", f"sw{s}", speed) for h, s in pairs)
    assert links(made) == one_way + Counter({(b, a, v): k for (a, b, v), k in one_way.items()})


@pytest.mark.parametrize(
    ("speed", "gigabits"),
    [("4xQDR", 32), ("4xFDR", 54.56), ("4xEDR", 100), ("2xHDR", 100), ("4xHDR", 200),
     ("4xNDR", 400), ("4xXDR", 800), ("4xFDR10", 40)],
)  # fmt: skip
def test_speeds_are_those_that_are_sold(speed, gigabits):
    made = ibnetdiscover.loads(printed.leaf_spine(1, 2, 0, speed=speed))
    assert made.bandwidth.tolist() == pytest.approx([gigabits * 1e9 / 8] * 4)


def test_a_cable_without_a_speed_is_said():
    with pytest.warns(AssumptionWarning, match="50 GB/s of 2 cables without a speed"):
        made = ibnetdiscover.loads(printed.leaf_spine(1, 2, 0, speed="???"))
    assert set(made.bandwidth.tolist()) == {50e9}


def test_one_end_of_a_cable_is_enough():
    """Adapters whose paragraph has no ports, as where a print was cut to its switches."""
    lines = [line for line in FABRIC.splitlines() if "](" not in line.split("\t")[0]]
    assert len(lines) < len(FABRIC.splitlines())
    assert ibnetdiscover.loads("\n".join(lines)) == ibnetdiscover.loads(FABRIC)


# ---------------------------------------------------------------------- hosts


def test_gpus_have_the_ports_of_their_numbers():
    """mlx5_10 comes after mlx5_2; each of eight GPUs has one port, or two, or shares one."""
    own = links(ibnetdiscover.loads(printed.leaf_spine(1, 2, 0, adapters=8), gpu="h100:8"))
    leaf = "MF0;leaf0:MQM9700/U1"
    assert all(own[f"host n1 gpu {g}", leaf, 50e9] == 1 for g in range(8))
    two = links(ibnetdiscover.loads(printed.leaf_spine(1, 2, 0, adapters=12), gpu="h100:6"))
    assert two["host n0 gpu 5", leaf, 50e9] == 2
    shared = links(ibnetdiscover.loads(printed.leaf_spine(1, 2, 0, adapters=2), gpu="h100:4"))
    assert shared["host n0 gpu 1", "host n0 mlx5_0 port 1", 50e9] == 1
    assert shared["host n0 gpu 1", "host n0 mlx5_1 port 1", 50e9] == 0
    assert shared["host n0 gpu 2", "host n0 mlx5_1 port 1", 50e9] == 1
    assert shared["host n0 mlx5_1 port 1", leaf, 50e9] == 1


def test_adapters_are_dealt_in_the_order_of_their_numbers():
    described = {"S-1": "a", "S-2": "b"} | {
        f"H-{i}": f"n{i // 2} mlx5_{(10, 2)[i % 2]}" for i in range(4)
    }
    cables = [((f"H-{i}", 1), (("S-1", "S-2")[i % 2], i + 1)) for i in range(4)]
    cables += [(("S-1", 9), ("S-2", 9))]
    found = links(ibnetdiscover.loads(printed.ibnetdiscover(described, cables), gpu="a100:2"))
    assert found["host n0 gpu 0", "b", 50e9] == found["host n0 gpu 1", "a", 50e9] == 1


def test_a_gpu_with_two_ports_has_neighbours():
    described = {"S-1": "a", "S-2": "b"} | {f"H-{i}": f"n mlx5_{i}" for i in range(4)}
    cables = [((f"H-{i}", 1), (("S-1", "S-2")[i // 2], i + 1)) for i in range(4)]
    cables += [(("S-1", 9), ("S-2", 9))]
    found = links(ibnetdiscover.loads(printed.ibnetdiscover(described, cables), gpu="a100:2"))
    assert (found["host n gpu 0", "a", 50e9], found["host n gpu 1", "b", 50e9]) == (2, 2)


def test_aggregation_nodes_are_no_hosts_and_models_no_names():
    described = {
        "S-1": "x", "H-a": "Mellanox Technologies Aggregation Node", "H-b": "MT4129 ConnectX7",
        "H-c": "MT4129 ConnectX7", "H-d": "node9 mlx5_0",
    }  # fmt: skip
    cables = [((node, 1), ("S-1", i)) for i, node in enumerate(described) if node != "S-1"]
    made = ibnetdiscover.loads(printed.ibnetdiscover(described, cables))
    assert made.vertex_names == ("host H-b", "host H-c", "host node9", "x")


def test_switches_of_the_same_name_have_their_identifiers():
    described = {"S-1": "core", "S-2": "core", "H-1": "a x", "H-2": "b x"}
    cables = [(("H-1", 1), ("S-1", 1)), (("H-2", 1), ("S-2", 1)), (("S-1", 2), ("S-2", 2))]
    made = ibnetdiscover.loads(printed.ibnetdiscover(described, cables))
    assert made.vertex_names[2:] == ("S-1", "S-2")


def test_the_hosts_of_a_job_alone():
    made = ibnetdiscover.loads(FABRIC, nodes="n[0-1]")
    assert made.vertex_names == ("host n0", "host n1", "MF0;leaf0:MQM9700/U1")
    with pytest.raises(TopologyError, match="nothing joins 'host n0' and 'host n2'"):
        ibnetdiscover.loads(printed.leaf_spine(2, 2, 0))


test_other_lines_are_refused = refuses(
    ibnetdiscover.loads, (FormatError, TopologyError), FABRIC, "ibnetdiscover"
)


def test_commands_take_a_fabric_where_a_network_stands(tmp_path, capsys):
    path = tmp_path / "ib.txt"
    path.write_text(printed.leaf_spine(2, 2, 1, adapters=4))
    options = ("--gpu", "h100:4", "--bandwidth", "450GB/s", "--alpha", "2us", "--json")
    code, out, said = called(capsys, "bound", path, "all_gather", *options)
    assert (code, json.loads(out)["ranks"], said.count("assumed")) == (0, 16, 1)
    assert called(capsys, "show", path)[0] == 0
    assert "at most 1 values" in refused(capsys, "bound", path, "--bandwidth", "1GB/s,1GB/s")


def test_a_print_that_lost_a_paragraph_is_refused_by_name():
    """Whatever is missing, its neighbours still have cables to it."""
    whole = FABRIC.split("\n\n")
    lost = 0
    for i, part in enumerate(whole):
        names = [word for word in part.split('"')[1:2] if word.startswith(("S-", "H-"))]
        if not names:
            continue
        text = "\n\n".join(whole[:i] + whole[i + 1 :])
        with pytest.raises(FormatError, match=f"cable to '{names[0]}' port .* no paragraph"):
            ibnetdiscover.loads(text)
        lost += 1
    assert lost == 2 + 1 + 4
