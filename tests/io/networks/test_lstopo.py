"""hwloc's XML: networks of NCCL's dumps of the same hosts; files without links, names, cards."""

from __future__ import annotations

import json
import re
import warnings

import pytest

import jaxcoll as jc
from jaxcoll.errors import AssumptionWarning, FormatError, TopologyError
from jaxcoll.io import lstopo, nccl_topology
from tests.cli.calls import called
from tests.io.mutations import refuses
from tests.io.networks import hosts, printed

pytestmark = pytest.mark.filterwarnings("ignore::jaxcoll.errors.AssumptionWarning")
CLIQUE = hosts.clique({(0, 1): 2, (2, 3): 1})
V100 = "Tesla V100-SXM2-16GB"


def of_nccl(text: str, **options) -> jc.Topology:
    return nccl_topology.topology(nccl_topology.loads(text), **options)


@pytest.mark.parametrize(
    ("dump", "model", "megabytes"),
    [
        (hosts.h100(), "NVIDIA H100 80GB HBM3", 26562), (hosts.h100(), "NVIDIA H100", 25000),
        (hosts.a100(), "NVIDIA A100-SXM4-40GB", 25000), (CLIQUE, V100, 25781),
        (hosts.amd(), "AMD Instinct MI300X", 50000),
    ],
)  # fmt: skip
def test_a_host_is_the_network_of_nccls_dump(dump, model, megabytes):
    made = lstopo.loads(printed.lstopo(dump, model, megabytes), network=25e9)
    assert made == of_nccl(dump)
    if "<net" in dump:
        two = lstopo.loads(printed.lstopo(dump, model, megabytes), hosts=2, network=25e9)
        assert two == of_nccl(dump, hosts=2, network=25e9)


def test_links_that_hwloc_did_not_see_are_those_of_the_kind():
    with pytest.warns(AssumptionWarning, match="18 of each h100 to NVSwitches are assumed"):
        made = lstopo.loads(printed.lstopo(hosts.h100(), megabytes=0))
    assert made == of_nccl(hosts.h100())
    with pytest.warns(AssumptionWarning, match="1 between every two mi300x are assumed"):
        mesh = lstopo.loads(printed.lstopo(hosts.amd(), "", 0), gpu="mi300x")
    assert mesh == of_nccl(hosts.amd())
    with pytest.warns(AssumptionWarning, match="no links between v100 but PCIe.*nvidia-smi topo"):
        tree = lstopo.loads(printed.lstopo(CLIQUE, V100, 0))
    assert tree.bandwidth.max() <= 16e9
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        card = lstopo.loads(printed.lstopo(hosts.h100(), "NVIDIA H100 PCIe", 0))
    assert not any("NVSwitch" in str(each.message) for each in said)
    assert card.num_links > made.num_links
    assert not card.in_network.adding


def test_the_tree_of_pcie_is_that_of_nccls_dump():
    """Eight cards below bridges of two sockets, numbered as they stand in the file."""
    without = re.sub(r"<nvlink[^>]*/>", "", hosts.h100())
    made = lstopo.loads(printed.lstopo(without, "NVIDIA H100 PCIe", 0))
    assert made == of_nccl(without)


def test_gpus_are_numbered_as_they_stand_in_the_file():
    """Three of one socket, then one of another."""
    sockets: list[str] = []
    for socket, gpus in ((0, (0, 1, 2)), (1, (3,))):
        inside: list[str] = []
        for g in gpus:
            said = f'dev="{g}" sm="75" rank="{g}"'
            inside += hosts.gpu(f"0000:{g:02x}:00.0", said, "8.0", ())
        sockets += hosts.cpu(socket, hosts.INTEL, inside)
    dump = hosts.system(sockets)
    assert lstopo.loads(printed.lstopo(dump, "Tesla T4", 0)) == of_nccl(dump)


def test_pairs_in_several_hops_have_no_xgmi():
    """Of dies in a chain, whose ends hwloc gives a bandwidth, too."""
    text = printed.lstopo(hosts.amd(3, "90a"), "AMD Instinct MI250X", 50000)
    start = text.index("<distances2")
    matrix = text[start : text.index("</topology>")].replace("XGMIBandwidth", "XGMIHops")
    values = 'u64values length="18">0 1 2 1 0 1 2 1 0 </u64values>'
    hops = re.sub(r"u64values.*</u64values>", values, matrix)
    chain = lstopo.loads(text.replace("</topology>", f"{hops}</topology>"))
    ends = set(zip(chain.src.tolist(), chain.dst.tolist(), strict=True))
    assert ends == {(0, 1), (1, 0), (1, 2), (2, 1)}
    assert set(chain.bandwidth.tolist()) == {50e9}


def test_slots_of_amd_are_those_of_their_generation():
    """Where a virtual machine reports the speed of no link."""
    text = printed.lstopo(hosts.amd(2, "90a"), "AMD Instinct MI210", 0)
    made = lstopo.loads(re.sub(r'pci_link_speed="[0-9.]*"', "", text))
    assert set(made.bandwidth.tolist()) == {31.5e9}


def test_gpus_without_a_name_need_their_kind():
    nameless = printed.lstopo(hosts.h100(), "", 0)
    with pytest.raises(
        FormatError, match=r"a GPU without a name is not of a known kind; give gpu="
    ):
        lstopo.loads(nameless)
    assert lstopo.loads(nameless, gpu="h100") == of_nccl(hosts.h100())
    with pytest.raises(FormatError, match="'NVIDIA H999' is not of a known kind"):
        lstopo.loads(printed.lstopo(hosts.h100(), "NVIDIA H999"))


def test_gpus_on_the_machine_itself_are_read():
    """As in virtual machines, whose bridges belong to no socket."""
    text = printed.lstopo(CLIQUE, V100)
    text = text.replace('type="Package"', 'type="Group"').replace(
        'type="Machine"', 'type="Machine"'
    )
    made = lstopo.loads(text)
    assert (made.num_ranks, made.num_links) == (4, 2 * (2 + 4))


def test_slots_of_other_speeds_are_told_by_lanes():
    text = printed.lstopo(hosts.clique({}, 2), V100, 0).replace("15.753840", "7.876920", 1)
    made = lstopo.loads(text, gpu="v100")
    assert sorted(set(made.bandwidth.tolist())) == [7.875e9, 15.75e9]


def test_several_hosts_assume_their_cards():
    with pytest.warns(AssumptionWarning, match="a NIC is assumed to have 50 GB/s"):
        made = lstopo.loads(printed.lstopo(hosts.h100()), hosts=2)
    assert made == of_nccl(hosts.h100(), hosts=2, network=50e9)
    with pytest.raises(TopologyError, match="no network card"):
        lstopo.loads(printed.lstopo(CLIQUE, V100), hosts=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"gpu": "x"}, "gpu must be one of v100"), ({"hosts": 0}, "hosts"),
     ({"network": 0}, "network"), ({"speeds": "x"}, "speeds")],
)  # fmt: skip
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(TopologyError, match=message):
        lstopo.loads(printed.lstopo(CLIQUE, V100), **options)


test_other_xml_is_refused = refuses(
    lstopo.loads, (FormatError, TopologyError), printed.lstopo(CLIQUE, V100), "lstopo"
)


def test_commands_take_a_machine_where_a_network_stands(tmp_path, capsys):
    path = tmp_path / "topology.xml"
    path.write_text(printed.lstopo(hosts.h100()))
    options = ("--hosts", "2", "--bandwidth", "50GB/s", "--gpu", "h100", "--json")
    code, out, _ = called(capsys, "bound", path, "all_gather", *options)
    assert (code, json.loads(out)["ranks"]) == (0, 16)
    assert called(capsys, "convert", path, tmp_path / "n.json", "--speeds", "nccl")[0] == 0
    assert jc.io.load(tmp_path / "n.json") == of_nccl(hosts.h100(), speeds="nccl")
