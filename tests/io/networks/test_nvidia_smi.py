"""Tables of ``nvidia-smi topo -m``: printed, pasted, cut, of other tools; and networks."""

from __future__ import annotations

import numpy as np
import pytest

import jaxcoll as jc
from jaxcoll.errors import AssumptionWarning, FormatError, TopologyError
from jaxcoll.io import nvidia_smi
from jaxcoll.io.networks.nvidia_smi import Connections, dumps, loads, topology
from tests.io.mutations import refuses

PRINTED = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tPIX\tNODE\t0-15\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\tPXB\t16-31\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \tSYS\t\t\t\t\n"
    "NIC1\tNODE\tPXB\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n  NV#  = number of NVLinks\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
)
READ = Connections(
    2, (("X", "NV18"), ("NV18", "X")), {"NIC0": ("PIX", "SYS"), "NIC1": ("NODE", "PXB")}
)


def host(rows: str) -> Connections:
    """A host whose GPUs are joined as rows of cells say."""
    cells = [row.split() for row in rows.split("/")]
    head = "\t".join(["", *(f"GPU{g}" for g in range(len(cells)))])
    return loads("\n".join([head, *("\t".join([f"GPU{g}", *row]) for g, row in enumerate(cells))]))


def pasted(text: str) -> str:
    """As a terminal gives it: a prompt, spaces for tabs, the escape character lost, CRLF."""
    spaced = text.replace("\t", "    ").replace("\x1b", "")
    return ("root@host:~# nvidia-smi topo -m\n" + spaced).replace("\n", "\r\n")


@pytest.mark.parametrize("text", [PRINTED, pasted(PRINTED), PRINTED.replace("SYS", "SOC")])
def test_a_table_is_read_as_printed_and_as_pasted(text):
    assert loads(text) == READ
    assert loads(dumps(READ)) == READ


def test_nics_may_have_the_names_of_their_drivers():
    read = loads(PRINTED.replace("NIC0\t", "mlx5_0\t").replace("NIC1\t", "ib0\t"))
    assert list(read.nics) == ["mlx5_0", "ib0"]


@pytest.mark.parametrize("text", ["", "{}"])
def test_text_without_a_header_is_refused(text):
    with pytest.raises(FormatError, match="no header that begins with GPU0"):
        loads(text)


test_other_text_is_refused_by_name = refuses(loads, FormatError, PRINTED, "nvidia_smi")


def test_hosts_behind_a_switch_are_those_of_the_family():
    """Eight H100 with a NIC each carry what ``dgx_h100`` does; its NIC is one link, here two."""
    cells = "/".join(" ".join("X" if i == j else "NV18" for j in range(8)) for i in range(8))
    joined = host(cells).joined
    kinds = ("SYS", "NODE", "PIX")  # by how much a GPU and a NIC have in common
    nics = {
        f"NIC{i}": tuple(kinds[(i // 4 == g // 4) + (i == g)] for g in range(8)) for i in range(8)
    }
    made = topology(Connections(8, joined, nics), gpu="h100", hosts=2, network=50e9)
    family = jc.topologies.dgx_h100(2, inside=450e9, network=50e9)
    assert made.num_ranks == family.num_ranks == 16
    assert made.num_vertices == 16 + 2 + 1 + 16
    for kind in ("all_reduce", "all_to_all"):
        times = [jc.bound(each, kind, 1e12).time for each in (made, family)]
        assert times[0] == pytest.approx(times[1], rel=0.03)


def test_few_nvlinks_join_pairs_directly():
    dgx1 = host(
        "X NV2 NV1 NV1/NV2 X NV1 NV2/NV1 NV1 X NV2/NV1 NV2 NV2 X"
    )  # half of a DGX-1, whose NVLinks reach all: no PCIe
    made = topology(dgx1, gpu="v100")
    assert (made.num_vertices, made.num_links) == (4, 12)
    assert sorted(set(made.bandwidth.tolist())) == [25e9, 50e9]
    assert topology(dgx1, gpu="v100", inside=20e9).bandwidth.max() == 40e9


def test_what_nvlink_does_not_reach_hangs_on_pcie():
    table = host("X NV4 SYS SYS/NV4 X SYS SYS/SYS SYS X PHB/SYS SYS PHB X")
    with pytest.warns(AssumptionWarning, match=r"31\.5 GB/s, and 32 GB/s between sockets"):
        made = topology(table, gpu="a40")
    names = made.vertex_names[4:]
    assert names == ("host 0 PHB 2", "host 0 SYS 0")
    ends = set(zip(made.src.tolist(), made.dst.tolist(), strict=True))
    assert {(0, 1), (2, 4), (3, 4), (0, 5), (1, 5), (4, 5)} <= ends
    assert len(ends) == 12
    assert np.isfinite(jc.bound(made, "all_reduce", 1e9).time)


@pytest.mark.parametrize(("gpu", "slot"), [("t4", 15.75), ("l40s", 31.5), ("rtx4090", 31.5)])
def test_gpus_without_nvlink_hang_on_pcie(gpu, slot):
    """Sixteen lanes of the slot that NVIDIA's data sheet says: of generation 3 or 4."""
    with pytest.warns(AssumptionWarning):
        made = topology(host("X PIX/PIX X"), gpu=gpu)
    assert set(made.bandwidth.tolist()) == {slot * 1e9}
    with pytest.raises(TopologyError, match=f"the table has NV4, and {gpu} has no NVLink"):
        topology(host("X NV4/NV4 X"), gpu=gpu)


def test_everything_assumed_is_said():
    with pytest.warns(AssumptionWarning) as said:
        topology(READ, hosts=2)
    assert [str(each.message).split(";")[0] for each in said] == [
        "NV18: the GPUs are assumed to be h100",
        "a NIC is assumed to have 50 GB/s",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu": "h900"}, "gpu must be one of v100"),
        ({"hosts": 0}, "hosts"),
        ({"inside": 0}, "inside must be a finite number above 0"),
        ({"network": "fast"}, "network"),
    ],
)
def test_bad_arguments_are_refused(options, message):
    with pytest.raises(TopologyError, match=message):
        topology(READ, **{"gpu": "h100", **options})
    with pytest.raises(TopologyError, match="has no NIC"):
        topology(host("X NV18/NV18 X"), gpu="h100", hosts=2)


def test_files(tmp_path):
    nvidia_smi.save(tmp_path / "topo.txt", READ)
    assert nvidia_smi.load(tmp_path / "topo.txt") == READ


def test_nvlinks_that_are_down_narrow_a_port_of_the_switch():
    """A GPU with 17 of 18 shows NV17 to every peer; one with none is SYS from all."""
    cells = [["X" if i == j else "NV17" if 3 in (i, j) else "NV18" for j in range(8)]
             for i in range(8)]  # fmt: skip
    made = topology(Connections(8, tuple(map(tuple, cells)), {}), gpu="h100")
    assert made.num_ranks + 1 == made.num_vertices
    out = dict(zip(made.src.tolist(), made.bandwidth.tolist(), strict=True))
    assert {g: out[g] for g in range(8)} == {g: 25e9 * (17 if g == 3 else 18) for g in range(8)}

    gone = [["X" if i == j else "SYS" if 3 in (i, j) else "NV18" for j in range(8)]
            for i in range(8)]  # fmt: skip
    made = topology(Connections(8, tuple(map(tuple, gone)), {}), gpu="h100")
    (switch,) = (v for v, name in enumerate(made.vertex_names) if name.endswith("NVSwitch"))
    ends = set(zip(made.src.tolist(), made.dst.tolist(), strict=True))
    assert {a for a, b in ends if b == switch} == set(range(8)) - {3}
    assert 3 in {a for a, _ in ends}
