"""Clusters of SLURM's: trees, blocks, lists of hosts, hosts' GPUs, refusals."""

from __future__ import annotations

import json
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll.errors import AssumptionWarning, FormatError, TopologyError
from jaxcoll.io import slurm
from jaxcoll.io.networks.clusters import hosts_named
from tests.cli.calls import called, refused
from tests.io.mutations import refuses
from tests.io.networks import printed

pytestmark = pytest.mark.filterwarnings("ignore::jaxcoll.errors.AssumptionWarning")


def links(topology: jc.Topology) -> dict[tuple[str, str], float]:
    names = topology.vertex_names
    ends = zip(
        topology.src.tolist(), topology.dst.tolist(), topology.bandwidth.tolist(), strict=True
    )
    return {(names[a], names[b]): speed for a, b, speed in ends}


@pytest.mark.parametrize("text", [printed.TREE, printed.TREE_SHOWN, printed.YAML])
def test_a_tree_of_switches(text):
    found = links(made := slurm.loads(text, network=25e9))
    assert (made.num_ranks, made.num_vertices, made.num_links) == (4, 7, 12)
    assert made.vertex_names[:4] == tuple(f"host gpu0{i}" for i in range(1, 5))
    assert found["host gpu01", "leaf1"] == found["leaf2", "host gpu03"] == 25e9
    assert found["leaf1", "spine"] == found["spine", "leaf2"] == 2 * 25e9
    assert ("leaf1", "leaf2") not in found


def test_hosts_of_gpus_on_one_switch_are_those_of_the_family():
    made = slurm.loads("SwitchName=s Nodes=n[1-2]", gpu="h100:8", network=50e9)
    family = jc.topologies.dgx_h100(2, inside=450e9, network=50e9)
    assert made.num_links == family.num_links
    assert made.in_network.adding
    for kind in ("all_reduce", "all_to_all"):
        times = [jc.bound(each, kind, 1e12).time for each in (made, family)]
        assert times[0] == pytest.approx(times[1], rel=1e-3)


def test_a_tree_of_gpus_passes_all_up():
    """Non-blocking: a tree of any depth has the bounds of a single switch."""
    one = slurm.loads("SwitchName=s Nodes=gpu[01-04]", gpu="a100:4")
    two = slurm.loads(printed.TREE, gpu="gpu:a100:4")
    assert jc.bound(two, "all_to_all", 1e12).time == pytest.approx(
        jc.bound(one, "all_to_all", 1e12).time, rel=1e-3
    )
    mesh = slurm.loads(printed.TREE, gpu="mi300x:8")
    assert mesh.num_links == 2 * (4 * 28 + 4 * 8 + 2)


def test_several_switches_above_share_the_traffic():
    text = printed.TREE + "SwitchName=spine2 Switches=leaf[1-2]"
    found = links(slurm.loads(text, network=10e9))
    assert found["leaf1", "spine"] == found["leaf1", "spine2"] == 10e9
    deep = printed.TREE + "SwitchName=core Switches=spine"
    assert links(slurm.loads(deep, network=10e9))["spine", "core"] == 40e9


def test_a_host_on_several_switches_has_a_port_on_each():
    rails = "".join(f"SwitchName=rail{i} Nodes=n[1-2]\n" for i in range(2))
    found = links(slurm.loads(rails, gpu="h100:4"))
    assert [("host n1 gpu 1", f"rail{i}") in found for i in range(2)] == [False, True]
    assert len(links(slurm.loads(rails))) == 2 * 4


def test_blocks_are_racks_of_nvlink_or_switches():
    racks = slurm.loads(printed.BLOCKS, gpu="gb200", network=50e9)
    assert racks.num_ranks == 16
    assert racks.vertex_names[16:] == ("rack gb01 switch", "rack gb03 switch", "network")
    assert sum("switch" in a for a, _ in links(racks)) == 16
    plain = links(slurm.loads(printed.BLOCKS, network=10e9))
    assert plain["host gb01", "rack1"] == 10e9
    assert plain["rack1", "network"] == 20e9
    one = slurm.loads("BlockName=b Nodes=n[1-3]")
    assert one.vertex_names[3:] == ("b",)


def test_the_default_of_a_yaml_file_is_taken():
    with pytest.warns(AssumptionWarning, match="'racks, fabric, all' that of 'fabric' is taken"):
        slurm.loads(printed.YAML)
    racks = printed.YAML.replace("false", "True", 1)
    assert slurm.loads(racks).vertex_names[4:] == ("rack1",)
    flat = printed.YAML.replace("cluster_default: true", "").replace("racks", "flat")
    assert slurm.loads(flat).vertex_names[4:] == ("rack1",)
    alone = printed.YAML[printed.YAML.index("- topology: fabric") :]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        slurm.loads(alone, gpu="gh200", network=1e9, alpha=0, nodes="gpu01")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("topology: racks", "topology: fabric", "line 11: the topology 'fabric' is given twice"),
        ("children", "below", "line 20: expected topology, tree, block, switch"),
        ("switch: leaf2", "switch: leaf1", "line 17: the name 'leaf1' is empty or given twice"),
        ("gpu[01-02]", "gpu[2-1]", "line 15: '2-1' in 'gpu\\[2-1\\]' must be a range"),
        ("nodes: ", "nodes = ", "expected topology"),
        ("- switch", "- flat", "line 16: expected topology"),
    ],
)
def test_other_yaml_is_refused(old, new, message):
    assert old in printed.YAML
    with pytest.raises(FormatError, match=message):
        slurm.loads(printed.YAML.replace(old, new))


def test_long_lines_and_many_are_read_once():
    for text in ("- topology: a\n" + "- " + " " * 2**19 + "x", "\n" * 2**19 + "x", "[" * 2**19):
        with pytest.raises(FormatError):
            slurm.loads(text)


def test_a_rack_that_is_not_known_is_said():
    with pytest.warns(AssumptionWarning, match="NVLink of gb200 ends at its host"):
        made = slurm.loads(printed.TREE, gpu="gb200")
    assert made.num_ranks == 16


def test_all_that_is_assumed_is_said_at_once():
    with pytest.warns(AssumptionWarning) as said:
        slurm.loads(printed.TREE)
    assert [str(each.message) for each in said] == [
        "assumed: a port per rank of 50 GB/s; switches pass up all that their hosts send; a host "
        "is a rank; gpu=, as h100:8, says its GPUs; 5 us to a switch"
    ]
    with pytest.warns(AssumptionWarning) as said:
        slurm.loads("SwitchName=s Nodes=n[1-2]", gpu="h100", network=1e9, inside=1e9, alpha=1e-6)
    assert str(said[0].message) == "assumed: GPUs use the ports of their host in turn"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        slurm.loads("SwitchName=s Nodes=n[1-2]", gpu="gh200", network=1e9, alpha=0)


def test_the_hosts_of_a_job_alone():
    made = slurm.loads(printed.TREE, nodes="gpu[02-03]", network=10e9)
    assert made.vertex_names == ("host gpu02", "host gpu03", "leaf1", "leaf2", "spine")
    below_one = slurm.loads(printed.TREE, nodes="gpu02,gpu01")
    assert below_one.vertex_names == ("host gpu02", "host gpu01", "leaf1")
    for nodes, message in (
        ("gpu09", r"has no host 'gpu09'; it has 'gpu01, gpu02, gpu03, gpu04'"),
        ("gpu01,gpu01", "names a host twice"), ("gpu[", "expected a list of names"), (3, "nodes"),
    ):  # fmt: skip
        with pytest.raises(FormatError, match=message):
            slurm.loads(printed.TREE, nodes=nodes)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- lists of hosts


@given(
    st.lists(
        st.tuples(st.sampled_from(["", "a", "rack-"]), st.integers(0, 99), st.integers(0, 12),
                  st.integers(1, 4), st.sampled_from(["", "x"])),
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_ranges_are_written_out(parts):
    """Against the names that the ranges were made of, each with its digits."""
    names, text = [], []
    for prefix, low, more, digits, suffix in parts:
        text.append(f"n{prefix}[{low:0{digits}}-{low + more:0{digits}}]{suffix}")
        names += [f"n{prefix}{i:0{digits}}{suffix}" for i in range(low, low + more + 1)]
    assert hosts_named(",".join(text)) == names


def test_lists_of_several_brackets():
    assert hosts_named("r[1-2]n[08,10-11]z,login") == [
        "r1n08z", "r1n10z", "r1n11z", "r2n08z", "r2n10z", "r2n11z", "login"
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["", ",", "a[1-2", "a1-2]", "a[[1]]", "a[2-1]", "a[x]", "a[]", "a[1-999999999]",
             "a[1-200]b[1-200]", "a[1-9999],b[1-9999]", "[1]" * 2**19, "a," * 20_000],
)  # fmt: skip
def test_what_is_no_list_is_refused(text):
    with pytest.raises(FormatError, match=r"expected a list|must be a range|has more than"):
        hosts_named(text)


# ---------------------------------------------------------------------- refusals


test_other_lines_are_refused = refuses(slurm.loads, FormatError, printed.TREE, "slurm")


@pytest.mark.parametrize(
    ("options", "message"),
    [({"gpu": "h1000"}, "no GPU is called 'h1000'; did you mean h100"),
     ({"gpu": "h100:0"}, "1 to 256 GPUs"), ({"gpu": "h100:100000"}, "got 'h100:100000'"),
     ({"gpu": "tpu v4"}, "no GPU is called"), ({"gpu": ""}, "gpu must be"), ({"gpu": 8}, "gpu"),
     ({"network": 0}, "network must be"), ({"alpha": -1}, "alpha"),
     ({"inside": 1e9}, "add gpu=, as in gpu='h100:8'"), ({"gpu": "h100:8", "inside": 0}, "inside")],
)  # fmt: skip
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(TopologyError, match=message):
        slurm.loads(printed.TREE, **options)


def test_networks_that_nothing_joins_are_refused():
    text = "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2"
    with pytest.raises(TopologyError, match="nothing joins 'host n1' and 'host n2'"):
        slurm.loads(text)
    assert slurm.loads(text, nodes="n2").num_ranks == 1
    with pytest.raises(TopologyError, match=r"9999 hosts of 8 ranks .*choose some"):
        slurm.loads("SwitchName=s Nodes=n[1-9999]", gpu="h100:8")


def test_commands_take_a_cluster_where_a_network_stands(tmp_path, capsys):
    path = tmp_path / "topology.conf"
    path.write_text("#" * 10_000 + "\n" + printed.TREE)
    options = ("--gpu", "H100:8", "--nodes", "gpu[01-02]", "--bandwidth", "400GB/s,25GB/s")
    code, out, said = called(capsys, "bound", path, "all_gather", *options, "--json")
    assert (code, json.loads(out)["ranks"], said.count("assumed")) == (0, 16, 1)
    code, _, said = called(capsys, "bound", path, "--bandwidth", "25GB/s", "--alpha", "1us")
    assert (code, said.count("assumed")) == (0, 1)
    assert "GB/s" not in said
    network = tmp_path / "network.json"
    assert called(capsys, "convert", path, network, "--gpu", "h100:4")[0] == 0
    assert jc.io.load(network).num_ranks == 16
    assert "--hosts is already stated in" in refused(capsys, "bound", path, "--hosts", 2)
