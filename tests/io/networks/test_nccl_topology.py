"""NCCL's topology XML: hosts of public kinds, guesses, round trips and refusals."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll.errors import AssumptionWarning, FormatError, TopologyError
from jaxcoll.io import nccl_topology, nvidia_smi
from jaxcoll.io.networks import link_types
from jaxcoll.io.networks.nccl_topology import loads
from tests.cli.calls import called, refused
from tests.io.networks import hosts


def network(text: str, **options) -> jc.Topology:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AssumptionWarning)
        return nccl_topology.topology(loads(text), **options)


def speeds(topology: jc.Topology) -> Counter[float]:
    """Links by GB/s."""
    return Counter(round(float(speed) / 1e9, 3) for speed in topology.bandwidth)


# ---------------------------------------------------------------------- hosts


def test_the_dumps_are_those_of_this_file():
    assert (hosts.DUMPS / "dgx_h100.xml").read_text() == hosts.h100()
    assert (hosts.DUMPS / "dgx_a100.xml").read_text() == hosts.a100()


@pytest.mark.parametrize(
    ("text", "nominal", "nccl"), [(hosts.h100(), 450.0, 370.8), (hosts.a100(), 300.0, 240.0)]
)
def test_switches_of_a_host_are_one(text: str, nominal: float, nccl: float):
    for column, speed in (("nominal", nominal), ("nccl", nccl)):
        found = network(text, speeds=column)
        assert (found.num_ranks, found.num_vertices) == (8, 9)
        assert speeds(found) == {speed: 16}


def test_the_same_host_by_nvidia_smi_is_the_same_network():
    row = [["NV18"] * 8 for _ in range(8)]
    for g in range(8):
        row[g][g] = "X"
    nics = {f"NIC{n}": tuple("PIX" if n == g else "SYS" for g in range(8)) for n in range(8)}
    table = nvidia_smi.Connections(8, tuple(map(tuple, row)), nics)
    for count in (1, 2):
        other = nvidia_smi.topology(table, gpu="h100", hosts=count, network=50e9)
        found = network(hosts.h100(), hosts=count)
        assert speeds(found) == speeds(other)
        ideals = [jc.bounds.ideal(each, "all_reduce", 1e9) for each in (found, other)]
        assert ideals[0] == ideals[1]


def test_direct_links_are_counted_each_way():
    found = network(hosts.clique({(0, 1): 2, (0, 2): 1, (1, 3): 1, (2, 3): 2}))
    assert speeds(found) == {25.0: 4, 50.0: 4}
    assert found.num_vertices == 4
    assert speeds(network(hosts.amd())) == {64.0: 12}
    assert speeds(network(hosts.amd(), speeds="nccl")) == {48.0: 12}


def test_gpus_that_nvlink_does_not_reach_are_reached_by_pcie():
    found = network(hosts.clique({(0, 1): 2}))
    assert "host 0 socket 0" in found.vertex_names
    assert speeds(found) == {50.0: 2, 15.75: 8}


def test_a_rack_has_one_switch_and_hosts_of_their_own():
    found = network(hosts.rack())
    assert found.num_ranks == 4
    assert speeds(found)[900.0] == 8
    assert found.vertex_names[:4] == tuple(f"host {h} gpu {g}" for h in range(2) for g in range(2))
    lost = network(hosts.rack(lost=3))
    assert speeds(lost)[900.0] == 6
    assert 223.56 in speeds(lost)  # c2c, of the GPU without NVLink
    with pytest.raises(TopologyError, match="already describes 2 hosts"):
        network(hosts.rack(), hosts=2)


def test_ranks_say_the_order_of_gpus():
    text = hosts.clique({(0, 1): 2, (1, 2): 1}, 3).replace('rank="0"', 'rank="9"')
    assert [gpu.device for gpu in loads(text).gpus] == [1, 2, 0]
    with pytest.raises(FormatError, match="two GPUs have the rank 1"):
        loads(text.replace('rank="9"', 'rank="1"'))


def test_several_hosts_meet_at_the_nearest_cards():
    found = network(hosts.a100(), hosts=2)
    assert speeds(found) == {300.0: 32, 31.5: 64, 25.0: 32}
    assert speeds(network(hosts.a100(), hosts=2, network=12.5e9))[12.5] == 32


# ---------------------------------------------------------------------- what is guessed


def said(text: str, **options) -> str:
    with pytest.warns(AssumptionWarning) as caught:
        nccl_topology.topology(loads(text), **options)
    return str(caught[0].message)


def test_what_is_guessed_is_said():
    assert "one NVLink has 25 GB/s (nominal)" in said(hosts.h100())
    assert "one NVLink has 20.6 GB/s (nccl)" in said(hosts.h100(), speeds="nccl")
    assert "hops take 0.7, 2, 5 us" in said(hosts.h100())
    assert "xgmi of gfx999 is not known" in said(hosts.amd(2, "999"))
    slow = hosts.h100().replace('speed="400000"', 'speed="0"', 1)
    assert "does not say its speed: 10 Gbit/s" in said(slow, hosts=2)


def test_a_port_that_is_too_fast_is_one_in_kilobits():
    """As in some files of RCCL's collection: 200000000 for 200 Gbit/s."""
    odd = hosts.h100().replace('speed="400000"', 'speed="400000000"')
    with pytest.warns(AssumptionWarning, match="of 400000000 Mbit/s is faster than any: taken for"):
        read = loads(odd)
    assert [nic.speed for nic in read.nics] == [nic.speed for nic in loads(hosts.h100()).nics]


def test_pcie_speeds_that_cannot_be_are_not_believed():
    text = hosts.clique({(0, 1): 2})
    idle = text.replace("8.0 GT/s PCIe", "2.5 GT/s PCIe").replace('width="16"', 'width="1"')
    assert "0.25 GB/s of PCIe at 0000:00:00.0 is not believed" in said(idle)
    assert speeds(network(idle)) == speeds(network(text))
    virtual = hosts.bridge("0000:77:00.0", "2.5", [])
    lines = text.splitlines()
    lines[2:2] = [f"    {virtual[0].replace('16', '1')}"]
    at = next(i for i, line in enumerate(lines) if 'busid="0000:02' in line)
    lines[at:at] = ["    </pci>"]
    assert "PCIe bridge at 0000:77:00.0 is not believed" in said("\n".join(lines))


# ---------------------------------------------------------------------- files


@st.composite
def systems(draw: st.DrawFn) -> str:
    count = draw(st.integers(2, 6))
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    joined = draw(st.dictionaries(st.sampled_from(pairs), st.integers(1, 6)))
    return hosts.clique(joined, count, draw(st.sampled_from([60, 70, 80, 90, 100])))


@settings(max_examples=50, deadline=None)
@given(systems())
def test_files_come_back(text: str):
    system = loads(text)
    written = nccl_topology.dumps(system)
    assert loads(written) == system
    assert nccl_topology.dumps(loads(written)) == written
    assert network(text).num_ranks == len(system.gpus)


SKELETON = hosts.system(hosts.cpu(0, hosts.INTEL, hosts.bridge("0000:01:00.0", "16.0", [])))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not XML"),
        ("<algo></algo>", "expected <system>, got <algo>"),
        ("<graphs version='1'/>", "expected <system>, got <graphs>"),
        (hosts.h100()[:4000], "not XML, or cut short"),
        (hosts.h100().replace("<cpu", "7<cpu", 1), "line 2: text inside <system>, '7'"),
        (hosts.h100().replace('version="1"', 'version="3"'), "line 1: <system>: version must be 1"),
        ('<!DOCTYPE a [<!ENTITY b "c">]>' + hosts.h100(), "entities and instructions are not"),
        (SKELETON, "line 1: <system> has no gpu: it is a skeleton"),
        (hosts.h100().replace('count="5"', 'count="five"', 1), "line 11: <nvlink>: count must be"),
        (hosts.h100().replace('dev="0" sm', "sm", 1), "line 10: <gpu> lacks the attribute 'dev'"),
        (hosts.h100().replace('target="0000:05:00.0"', 'target="here"', 1), "target must be a PCI"),
        ("<system version='1'>" + "<pci>" * 100, "more than 64 deep"),
        ("<system version='1'>" + "<cpu/>" * 70_000 + "</system>", "more elements than are read"),
        (f"<system version='1' a='{'b' * 5000}'/>", "more than 4096 characters"),
    ],
)
def test_files_that_are_none_are_refused(text: str, message: str):
    with pytest.raises(FormatError, match=message) as caught:
        loads(text)
    assert len(str(caught.value)) < 300


def test_a_document_type_is_passed_over_and_nothing_resolved():
    text = '<!DOCTYPE system SYSTEM "/etc/passwd">\n' + hosts.h100()
    assert len(loads(text).gpus) == 8


@pytest.mark.parametrize(
    ("text", "message", "error"),
    [
        (hosts.clique({(0, 1): 2}, 2).replace('count="2"', 'count="1"', 1), "lists", FormatError),
        (hosts.rack(1, lost=0).replace("<c2c", "<none"), "", None),
        (hosts.clique({(0, 1): 2}, 2), "host 0 has no network card", TopologyError),
    ],
)
def test_networks_that_cannot_be_are_refused(text, message, error):
    if error is None:
        assert network(text).num_ranks == 2
        return
    with pytest.raises(error, match=message):
        network(text, hosts=2)


def test_the_table_of_links_has_both_columns():
    assert (link_types.nvlink(90).nominal * 18, link_types.nvlink(90).nccl * 18) == (
        450e9, pytest.approx(370.8e9),
    )  # fmt: skip
    assert link_types.nvlink(120) == link_types.nvlink(100)
    assert link_types.sockets("GenuineIntel", 0x8F).nccl == 22e9
    assert link_types.sockets("AuthenticAMD", 1).nccl == 16e9
    assert link_types.xgmi("gfx90a") == link_types.xgmi("910")
    assert 16 * link_types.PCIE_LANE[32.0].nccl == 48e9
    with pytest.raises(TopologyError, match="speeds"):
        link_types.nvlink(90).by("best")


# ---------------------------------------------------------------------- commands


@pytest.mark.parametrize("name", ["dgx_h100", "dgx_a100"])
def test_from_a_dump_to_a_proved_program_in_a_command_each(capsys, tmp_path: Path, name: str):
    dump, program = hosts.DUMPS / f"{name}.xml", tmp_path / "program.xml"
    code, _, err = called(
        capsys, "synth", "--from", dump, "all_reduce", "-s", "forestcoll", "--for-runtime",
        "msccl", "-o", program,
    )  # fmt: skip
    assert code == 0
    assert "assumed: one NVLink has 25 GB/s (nominal)" in err
    asked = ("--as", "all_reduce", "--ranks", "8", "--runtime", "msccl")
    assert called(capsys, "prove", program, *asked)[0] == 0
    assert called(capsys, "convert", program, tmp_path / "s.json", "--network", dump)[0] == 0
    assert called(capsys, "verify", tmp_path / "s.json")[0] == 0


def test_commands_refuse_what_the_file_states(capsys):
    dump = hosts.DUMPS / "dgx_h100.xml"
    assert "--gpu" in refused(capsys, "bound", "--from", dump, "--gpu", "h100")
    assert "the speeds of links are already stated in" in refused(
        capsys, "bound", "--from", dump, "--alpha", "1us"
    )
    assert "only apply to a FILE" in refused(capsys, "bound", "ring:4", "--speeds", "nccl")
