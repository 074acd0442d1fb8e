"""``jc.io.load`` tells every format apart by its content, and ``save`` by object and suffix."""

from __future__ import annotations

import codecs
import json
import warnings

import pytest

import jaxcoll as jc
from jaxcoll import io
from jaxcoll.errors import FormatError
from jaxcoll.io.nccl import conf, ncclx
from jaxcoll.io.nccl.conf import NcclRule
from jaxcoll.trees import TreeFlow
from tests.calibration.test_timings import MSCCLPP
from tests.cli.calls import called, refused
from tests.io.networks import hosts, printed
from tests.io.networks.test_graph_models import PAIR
from tests.io.research.test_research import FLOWS, TACCL, TREES
from tests.tune.nccl.test_nccl_tests import NEW

RING = jc.topologies.ring(4)
SCHEDULE = jc.synthesize(RING, "all_gather", "ring")
RULES = (NcclRule("all_reduce", 0, 2**20 + 7, "ring", "ll128", channels=4, nodes=1, ranks=8),)
ASTRA = "topology: [ Ring ]\nnpus_count: [ 4 ]\nbandwidth: [ 50.0 ]\nlatency: [ 500 ]\n"
SMI = "\tGPU0\tGPU1\nGPU0\tX\tNV18\nGPU1\tNV18\tX\n"
TECCL = json.dumps({"TopologyParams": {"name": "DGX1", "chassis": 1}})
TEXTS = {
    "own schedule": (io.dumps(SCHEDULE), jc.Schedule),
    "own network": (io.dumps(RING), jc.Topology),
    "own collective": (io.dumps(SCHEDULE.collective), jc.Collective),
    "sccl network": (io.sccl.dumps(RING), jc.Topology),
    "sccl schedule": (io.sccl.dumps(SCHEDULE), jc.Schedule),
    "te-ccl network": (TECCL, jc.Topology),
    "te-ccl schedule": (io.teccl.dumps(SCHEDULE, 1e6), jc.Schedule),
    "forestcoll": (io.forestcoll.dumps(SCHEDULE), TreeFlow),
    "msccl": (io.msccl.dumps(SCHEDULE), jc.Schedule),
    "mscclpp": (io.mscclpp.dumps(SCHEDULE), jc.Schedule),
    "graphml": (io.graph_files.dumps(RING), jc.Topology),
    "gexf": (io.graph_files.dumps(RING, "gexf"), jc.Topology),
    "infragraph": (PAIR, jc.Topology),
    "nccl topology": (hosts.clique({(0, 1): 2}, 2), jc.Topology),
    "nvidia-smi": (SMI, jc.Topology),
    "rocm-smi": (printed.rocm_smi(8), jc.Topology),
    "rocm-smi json": (printed.rocm_smi_json(2), jc.Topology),
    "amd-smi": (printed.amd_smi(2), jc.Topology),
    "amd-smi json": (printed.amd_smi_json(2), jc.Topology),
    "ibnetdiscover": (printed.leaf_spine(2, 2, 1), jc.Topology),
    "lstopo": (printed.lstopo(hosts.h100()), jc.Topology),
    "gke labels": (printed.DESCRIBED, jc.Topology),
    "gke gpus": (printed.GPU_NODES, jc.Topology),
    "gke labels json": (json.dumps(printed.nodes()), jc.Topology),
    "ns-3 of simai": (printed.SIMAI, jc.Topology),
    "ns-3 of hpcc": (printed.HPCC, jc.Topology),
    "slurm": (printed.TREE, jc.Topology),
    "slurm yaml": (printed.YAML, jc.Topology),
    "slurm blocks": (printed.BLOCKS, jc.Topology),
    "astra-sim": (ASTRA, jc.Topology),
    "nccl conf": (conf.dumps(RULES), tuple),
    "ncclx csv": (ncclx.dumps_csv(RULES), tuple),
    "ncclx json": (ncclx.dumps_json(RULES), tuple),
    "nccl-tests": (NEW, io.timings.Timings),
    "timings": (io.timings.dumps(io.timings.loads(NEW).rows), io.timings.Timings),
    "timings json": (io.timings.dumps_json(io.timings.loads(NEW).rows), io.timings.Timings),
}


@pytest.mark.parametrize("name", TEXTS)
def test_files_say_what_they_are(tmp_path, name):
    text, kind = TEXTS[name]
    path = tmp_path / "file"
    path.write_text(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = io.load(path, RING, ranks=8 if name.startswith("ncclx") else None)
    assert isinstance(read, kind)
    if kind is tuple:
        assert read == RULES
    if name in ("sccl schedule", "te-ccl schedule", "msccl", "mscclpp"):
        assert read == SCHEDULE


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("name", TEXTS)
def test_files_of_other_encodings_are_the_same(tmp_path, name, encoding):
    """As PowerShell's > and some editors write them."""
    text, _ = TEXTS[name]
    read = []
    for how in ("utf-8", encoding):
        path = tmp_path / how
        mark = codecs.BOM_UTF16_BE if how == "utf-16-be" else b""
        path.write_bytes(mark + text.encode(how))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read.append(io.load(path, RING, ranks=8 if name.startswith("ncclx") else None))
    assert read[0] == read[1] or name == "forestcoll"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TREES, "give network="),
        (json.dumps(FLOWS), "give network="),
        (io.msccl.dumps(SCHEDULE), "give network="),
        (json.dumps(TACCL), "sccl.topology"),
        (ncclx.dumps_csv(RULES), "need ranks="),
        ("<graphs version='1'/>", "orders of ranks"),
        ("<html></html>", "got <html>"),
        ("hello", "no known format begins with 'hello'"),
        (MSCCLPP, "give collective="),
    ],
)
def test_what_is_missing_is_named(tmp_path, text, words):
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(FormatError, match=f"{path.name}: .*{words}"):
        io.load(path)


def test_objects_are_saved_by_suffix(tmp_path):
    for name, obj in (
        ("ring.graphml", RING), ("ring.gexf", RING), ("ring.json", RING), ("s.json", SCHEDULE),
        ("rules.conf", RULES), ("rules.json", RULES), ("times.csv", io.timings.loads(NEW)),
        ("times.json", io.timings.loads(NEW)),
    ):  # fmt: skip
        io.save(tmp_path / name, obj)
        assert io.load(tmp_path / name, ranks=8 if obj == RULES else None) == obj
    io.save(tmp_path / "table.txt", io.nccl_tests.loads(NEW))
    assert io.nccl_tests.load(tmp_path / "table.txt") == io.nccl_tests.loads(NEW)
    with pytest.raises(FormatError, match="expected a Topology"):
        io.save(tmp_path / "x", ())


# ---------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("name", "form"),
    [("a.xml", "forestcoll"), ("a.json", "sccl"), ("a.json", "teccl"), ("a.xml", "azure")],
)
def test_schedules_are_converted_and_back(capsys, tmp_path, name, form):
    io.save(tmp_path / "s.json", SCHEDULE)
    target, back = tmp_path / name, tmp_path / "back.json"
    assert called(capsys, "convert", tmp_path / "s.json", target, "--format", form)[0] == 0
    network = () if form == "sccl" else ("--network", "ring:4")
    assert called(capsys, "convert", target, back, *network)[0] == 0
    jc.verify(io.load(back))


def test_networks_rules_and_times_are_converted(capsys, tmp_path):
    for name in ("ring.graphml", "ring.gexf"):
        assert called(capsys, "convert", "ring:4", tmp_path / name)[0] == 0
        assert io.load(tmp_path / name) == RING
        assert called(capsys, "bound", "--from", tmp_path / name)[0] == 0
    (tmp_path / "log.txt").write_text(NEW)
    assert called(capsys, "convert", tmp_path / "log.txt", tmp_path / "log.csv")[0] == 0
    assert io.load(tmp_path / "log.csv").rows == io.timings.loads(NEW).rows
    (tmp_path / "rules.csv").write_text(ncclx.dumps_csv(RULES))
    rules = (tmp_path / "rules.csv", tmp_path / "nccl_tuner.conf")
    assert called(capsys, "convert", *rules, "--ranks", 8)[0] == 0
    assert io.load(rules[1]) == RULES
    (tmp_path / "taccl.json").write_text(json.dumps(TACCL))
    taccl = (tmp_path / "taccl.json", tmp_path / "network.json")
    assert "--size" in refused(capsys, "convert", *taccl)
    assert called(capsys, "convert", *taccl, "--size", "1MB")[0] == 0
    assert io.load(taccl[1]).num_ranks == 2
    assert "holds rules" in refused(capsys, "convert", "ring:4", tmp_path / "x.conf")
    assert "holds networks" in refused(
        capsys, "convert", *rules[:1], tmp_path / "x.gexf", "--ranks", 8
    )
