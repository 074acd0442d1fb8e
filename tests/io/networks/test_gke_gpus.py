"""Hosts of GPUs by the labels of GKE, in every form in which kubectl prints them."""

from __future__ import annotations

import json

import pytest
import yaml

import jaxcoll as jc
from jaxcoll.errors import AssumptionWarning, FormatError, TopologyError
from jaxcoll.io import gke_gpus, slurm
from tests.cli.calls import called, refused
from tests.io.networks import printed

pytestmark = pytest.mark.filterwarnings("ignore::jaxcoll.errors.AssumptionWarning")
NODES = printed.gpu_nodes()
LABELS = [item["metadata"]["labels"] for item in NODES["items"]]
FORMS = {
    "json": json.dumps(NODES, indent=4),
    "yaml": yaml.safe_dump(NODES),
    "labels": "".join(
        f"gke-gpu-{i}   Ready   <none>   5d   {','.join(f'{k}={v}' for k, v in labels.items())}\n"
        for i, labels in enumerate(LABELS)
    ),
    "described": "".join(
        f"Name:               gke-gpu-{i}\nLabels:             "
        + "\n                    ".join(f"{k}={v}" for k, v in labels.items()) + "\n"
        for i, labels in enumerate(LABELS)
    ),
}  # fmt: skip
# The same tree, as SLURM would say it.
TREE = """SwitchName=s1 Nodes=gke-gpu-[0-1]
SwitchName=s2 Nodes=gke-gpu-2
SwitchName=s3 Nodes=gke-gpu-3
SwitchName=b1 Switches=s1,s2
SwitchName=b2 Switches=s3
SwitchName=top Switches=b1,b2
"""


def shape(network: jc.Topology) -> list:
    """Bandwidths from rank to switch, by the ranks that a switch's links bring it."""
    n, found = network.num_ranks, []
    ends = zip(network.src.tolist(), network.dst.tolist(), strict=True)
    for (a, b), speed in zip(ends, network.bandwidth.tolist(), strict=True):
        found.append((a if a < n else -1, b if b < n else -1, speed))
    return sorted(found)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_network(form):
    made = gke_gpus.loads(FORMS[form])
    assert made == gke_gpus.loads(FORMS["json"])
    assert made.num_ranks == 32
    assert made.vertex_names[:2] == ("host gke-gpu-0 gpu 0", "host gke-gpu-0 gpu 1")
    assert set(made.vertex_names[-6:]) == {
        "block b1", "block b2", "subblock s1", "subblock s2", "subblock s3", "network",
    }  # fmt: skip


def test_it_is_the_tree_that_slurm_would_say():
    ours = gke_gpus.loads(FORMS["json"], network=50e9)
    other = slurm.loads(TREE, gpu="h100:8", network=50e9)
    assert shape(ours) == shape(other)
    for size in (1e6, 1e9):
        assert jc.bound(ours, "all_reduce", size).time == pytest.approx(
            jc.bound(other, "all_reduce", size).time
        )


def test_nodes_of_one_subblock_are_hosts_on_one_switch():
    text = json.dumps(printed.gpu_nodes(tree=(("b", "s", 2),)))
    made = gke_gpus.loads(text, network=50e9)
    assert jc.measured.machine_like(made) is not None  # two hosts of H100
    assert gke_gpus.loads(text, nodes="gke-gpu-1").num_ranks == 8


def test_a_rack_has_one_switch_inside():
    made = gke_gpus.loads(json.dumps(printed.gpu_nodes("nvidia-gb200", "4")))
    inside = [name for name in made.vertex_names if name.endswith(" switch")]
    assert len(inside) == 3


def test_all_that_is_assumed_is_said():
    with pytest.warns(AssumptionWarning) as told:
        gke_gpus.loads(FORMS["json"])
    (one,) = told
    assert "subblocks and blocks pass up all that their hosts send" in str(one.message)
    bare = FORMS["yaml"].replace("gke-accelerator-count", "other")
    with pytest.warns(AssumptionWarning, match="no number of GPUs; state gpu="):
        gke_gpus.loads(bare)


@pytest.mark.parametrize(
    ("text", "options", "error", "match"),
    [
        ("", {}, FormatError, "no node has the labels"),
        (FORMS["json"].replace("kubernetes.io/hostname", "x"), {}, FormatError, "hostname"),
        (FORMS["json"] * 2, {}, FormatError, "'gke-gpu-0' is given twice"),
        (FORMS["json"].replace("gke-accelerator", "x"), {}, FormatError, "state gpu="),
        (FORMS["json"].replace("h100-mega-80gb", "l4", 1), {}, FormatError, "GPUs of 'nvidia-h100"),
        (FORMS["json"].replace("h100-mega", "h1000"), {}, TopologyError, "no GPU is called"),
        (FORMS["json"], {"nodes": "other"}, FormatError, "has no host 'other'"),
        (FORMS["json"], {"network": 0}, TopologyError, "network"),
        (FORMS["json"], {"gpu": "h100:0"}, TopologyError, "1 to 256"),
        (3, {}, FormatError, "text"),
    ],
)
def test_what_is_refused(text, options, error, match):
    with pytest.raises(error, match=match):
        gke_gpus.loads(text, **options)


def test_commands_take_it(capsys, tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text(FORMS["yaml"])
    code, out, _ = called(capsys, "show", path, "--nodes", "gke-gpu-[0-1]", "--json")
    assert (code, json.loads(out)["ranks"]) == (0, 16)
    assert "--gpu, as h100:8" not in refused(capsys, "show", path, "--hosts", 2)
