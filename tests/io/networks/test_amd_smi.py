"""Hosts as AMD's tools print them: text and JSON, direct links, hops, PCIe, several hosts."""

from __future__ import annotations

import json
import warnings

import pytest

import jaxcoll as jc
from jaxcoll.errors import AssumptionWarning, FormatError, TopologyError
from jaxcoll.io import amd_smi
from jaxcoll.topologies.gpu_clusters import _MI250
from tests.cli.calls import called, refused
from tests.io.mutations import refuses
from tests.io.networks import printed

STATED = {"gpu": "mi300x"}
MESH = [
    printed.rocm_smi(4), printed.rocm_smi_json(4), printed.amd_smi(4),
    printed.amd_smi_json(4, is_old=True),
]  # fmt: skip


def wires(topology: jc.Topology) -> dict[tuple[int, int], float]:
    pairs = zip(topology.src.tolist(), topology.dst.tolist(), strict=True)
    return dict(zip(pairs, topology.bandwidth.tolist(), strict=True))


@pytest.mark.parametrize("text", MESH)
def test_every_print_of_a_host_is_the_same_network(text):
    made = amd_smi.loads(text, gpu="mi300x")
    assert made == jc.topologies.fully_connected(4, alpha=0.7e-6, bandwidth=64e9)
    assert amd_smi.loads(text.replace("\n", "\r\n"), gpu="mi300x") == made


@pytest.mark.parametrize("make", [printed.rocm_smi, printed.amd_smi])
def test_an_mi250_host_has_the_wires_of_its_family(make):
    """Dies in several hops are XGMI, too; the tables' weights tell them from neighbours."""
    links = {(u, v): count for u, v, count in _MI250 if max(u, v) < 8}
    links |= {(v, u): count for (u, v), count in links.items()}

    def weight(i: int, j: int) -> int:
        return 15 if (i, j) in links else 30

    def bandwidth(i: int, j: int) -> str:
        return f"50000-{50000 * links[i, j]}" if (i, j) in links else "0-0"

    family = jc.topologies.mi250(1, ranks=8)
    if make is printed.rocm_smi:
        made = amd_smi.loads(make(8, weight=weight), gpu="mi250")
        assert set(wires(made)) == set(wires(family))
        return
    assert wires(amd_smi.loads(make(8, weight=weight, bandwidth=bandwidth), gpu="mi250")) == wires(
        family
    )


def test_links_are_counted_by_what_they_carry():
    counted = amd_smi.loads(printed.amd_smi_json(2), gpu="mi250")  # 50000-100000
    assert set(counted.bandwidth.tolist()) == {100e9}
    unknown = printed.amd_smi(2, bandwidth=lambda i, j: "0-0")
    assert set(amd_smi.loads(unknown, gpu="mi300a").bandwidth.tolist()) == {128e9}
    assert set(amd_smi.loads(unknown, gpu="mi300a", inside=1e9).bandwidth.tolist()) == {2e9}
    ours, rccl = (amd_smi.loads(unknown, gpu="mi355x", speeds=s) for s in ("nominal", "nccl"))
    assert (ours.bandwidth[0], rccl.bandwidth[0]) == (76.8e9, 48e9)


def hives(numa) -> str:
    def joined(i, j):
        return i // 2 == j // 2

    return printed.rocm_smi(
        4,
        lambda i, j: "XGMI" if joined(i, j) else "PCIE",
        lambda i, j: 15 if joined(i, j) else 72,
        lambda i, j: 1 if joined(i, j) else 3,
        numa,
    )


@pytest.mark.parametrize("numa", [lambda i: i // 2, lambda i: -1])
def test_hives_are_joined_over_pcie(numa):
    """By NUMA nodes, or where a machine says none, by the weights of two sockets."""
    with pytest.warns(AssumptionWarning) as said:
        made = amd_smi.loads(hives(numa))
    assert [str(each.message) for each in said] == [
        "the GPUs are assumed to be mi210; state gpu=",
        "PCIe is assumed to carry 31.5 GB/s, and 64 GB/s between sockets",
    ]
    assert made.vertex_names[4:] == ("host 0 PCIe 0", "host 0 PCIe 2", "host 0 sockets")
    found = wires(made)
    assert found[0, 1] == found[2, 3] == 50e9
    assert (0, 2) not in found
    assert (found[0, 4], found[3, 5], found[4, 6]) == (31.5e9, 31.5e9, 64e9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one_socket = amd_smi.loads(hives(lambda i: 0))
    assert one_socket.num_vertices == 5


def test_a_host_may_have_one_gpu():
    assert amd_smi.loads(printed.rocm_smi(1), gpu="mi300x").num_ranks == 1


def test_several_hosts_have_a_nic_per_gpu():
    with pytest.warns(AssumptionWarning, match="have a NIC of 50 GB/s; state network="):
        made = amd_smi.loads(MESH[0], gpu="mi300x", hosts=2)
    assert (made.num_ranks, made.num_vertices) == (8, 8 + 1 + 8)
    with pytest.warns(AssumptionWarning, match="have a NIC$"):
        slow = amd_smi.loads(MESH[0], gpu="mi300x", hosts=2, network=12.5e9)
    bound = jc.bound(slow, "all_gather", 8e9)
    assert bound.time == pytest.approx(4e9 / (4 * 12.5e9), rel=0.01)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"gpu": "h100"}, "gpu must be one of mi100"), ({"hosts": 0}, "hosts"),
     ({"inside": 0}, "inside must be"), ({"speeds": "x"}, "speeds")],
)  # fmt: skip
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(TopologyError, match=message):
        amd_smi.loads(MESH[0], **options)


test_tables_that_are_cut_are_refused = refuses(amd_smi.loads, FormatError, MESH[0], "amd_smi")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no table of link types; give what rocm-smi --showtopo"),
        ("{}", "no link types between GPUs"),
        ("[]", "1 to 128 GPUs, got 0"),
        ('[{"gpu": 0}, {"gpu": 1}]', "no link_type"),
        ('[{"gpu": 7}]', r"\[0\].gpu must be an integer from 0 to 0"),
        ('[{"gpu": 0, "link_type": {"x": 1}}]', "expected gpu_0 and so on, got 'x'"),
        (printed.amd_smi_json(2, lambda i, j: "N/A"), "must be XGMI or PCIE, got 'N/A'"),
        (printed.rocm_smi_json(2, lambda i, j: "0"), "must be XGMI or PCIE, got '0'"),
        (json.dumps({"system": {
            "(Topology) Link type between DRM devices 0 and 999": "XGMI"}}), "got 1000"),
    ],
)  # fmt: skip
def test_other_text_is_refused_by_name(text, message):
    with pytest.raises(FormatError, match=message):
        amd_smi.loads(text)


def test_commands_take_a_table_where_a_network_stands(tmp_path, capsys):
    table = tmp_path / "topo.txt"
    table.write_text(printed.amd_smi(4))
    code, out, _ = called(capsys, "bound", table, "all_gather", "--gpu", "MI300X", "--json")
    assert (code, json.loads(out)["ranks"]) == (0, 4)
    code, _, said = called(capsys, "bound", "--from", table, "--hosts", 2)
    assert (code, said.count("assumed")) == (0, 2)
    network = tmp_path / "network.json"
    assert called(capsys, "convert", table, network, "--gpu", "mi300x")[0] == 0
    assert jc.io.load(network) == amd_smi.load(table, gpu="mi300x")
    for options, said in (
        (("--alpha", "1us"), "the speeds of links are already stated in"),
        (("--bandwidth", "1GB/s,1GB/s,1GB/s"), "at most 2 values"),
        (("--gpu", "h100"), "mi300x"),
    ):
        assert said in refused(capsys, "bound", table, *options)
    assert "only apply to nvidia-smi's table" in refused(capsys, "bound", network, "--hosts", 2)


def test_a_link_that_is_down_is_left_out_and_changes_no_kind():
    """Of eight MI300X, all joined, by the type of a link or by its status."""

    def said(i: int, j: int) -> str:
        return "PCIE" if {i, j} == {0, 1} else "XGMI"

    down = json.loads(printed.amd_smi_json(8))
    for row in down:
        for link in row["links"]:
            if {row["gpu"], link["gpu"]} == {2, 5}:
                link["link_status"] = "DISABLED"
    for text, pair in ((printed.amd_smi_json(8, said), (0, 1)), (json.dumps(down), (2, 5))):
        with pytest.warns(AssumptionWarning, match="assumed to be mi300x"):
            made = amd_smi.loads(text)
        found = wires(made)
        direct = {(a, b) for a, b in found if a < 8 and b < 8}
        assert direct == {(a, b) for a in range(8) for b in range(8) if a != b} - {pair, pair[::-1]}


def test_links_that_are_not_counted_are_said():
    with pytest.warns(AssumptionWarning, match="28 pairs of dies are assumed to have 1 link each"):
        amd_smi.loads(printed.rocm_smi(8), gpu="mi250x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        amd_smi.loads(printed.amd_smi(8, bandwidth=lambda i, j: "50000-200000"), gpu="mi250x")
