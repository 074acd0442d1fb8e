"""TPU slices by the labels of GKE, in every form in which kubectl prints them."""

from __future__ import annotations

import json

import pytest
import yaml

import jaxcoll as jc
from jaxcoll.cli.networks import named_network
from jaxcoll.errors import AssumptionWarning, FormatError, TopologyError
from jaxcoll.io import gke_labels, tpu_slices
from tests.cli.calls import called, refused
from tests.io.networks import printed

FORMS = {
    "json": json.dumps(printed.nodes(), indent=4),
    "yaml": yaml.safe_dump(printed.nodes()),
    "labels": f"gke-tpu-1   Ready   <none>   5d   v1.31   {printed.LABELS}\n",
    "described": printed.DESCRIBED,
    "manifest": "spec:\n  nodeSelector:\n    cloud.google.com/gke-tpu-accelerator: tpu-v5p-slice\n"
    '    cloud.google.com/gke-tpu-topology: "2x2x4"\n',
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_slice(form):
    assert gke_labels.loads(FORMS[form]) == named_network("v5p:2x2x4")


@pytest.mark.parametrize(
    ("accelerator", "sides", "name"),
    [
        ("tpu-v4-podslice", "4x4x4", "v4:4x4x4"), ("tpu-v5-lite-podslice", "16x16", "v5e:16x16"),
        ("tpu-v5-lite-device", "2x4", "v5e:2x4"), ("tpu-v6e-slice", "4x8", "v6e:4x8"),
        ("tpu-v6e-device", "2x2", "v6e:2x2"), ("tpu7x", "2x2x2", "v7x:2x2x2"),
        ("tpu-v5p-slice", "16x16x24", "v5p:16x16x24"),
    ],
)  # fmt: skip
def test_every_generation_is_the_network_of_its_name(accelerator, sides, name):
    text = json.dumps(printed.nodes(accelerator, sides))
    assert gke_labels.loads(text) == named_network(name)


def test_links_may_be_stated():
    made = gke_labels.loads(printed.LABELS, alpha=2e-6, bandwidth=90e9)
    assert (set(made.alpha.tolist()), set(made.bandwidth.tolist())) == ({2e-6}, {90e9})
    with pytest.raises(TopologyError, match="bandwidth"):
        gke_labels.loads(printed.LABELS, bandwidth=0)


def test_equal_slices_are_one_network():
    with pytest.warns(AssumptionWarning, match="2 node pools have slices of tpu-v5p-slice 2x2x4"):
        made = gke_labels.loads(json.dumps(printed.nodes(pools=("a", "b"))))
    assert made.num_ranks == 16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the label cloud.google.com/gke-tpu-accelerator is missing"),
        (printed.LABELS.partition(",")[0], "gke-tpu-topology is missing; give what kubectl"),
        (f"{printed.LABELS}\n{printed.LABELS.replace('2x2x4', '4x4x4')}",
         "gke-tpu-topology has '2x2x4, 4x4x4'; give the nodes of one slice"),
        (printed.LABELS.replace("v5p", "v9"), "no slice of 'tpu-v9-slice' is known; known: tpu-v4"),
        (printed.LABELS.replace("2x2x4", "2x2"), "gke-tpu-topology: v5p-2x2: slices of v5p have 3"),
        (printed.LABELS.replace("2x2x4", "99x99x99"), "at most 6144 chips"),
        (printed.LABELS.replace("2x2x4", "16"), "must be sides in chips as 4x4x8, got '16'"),
    ],
)  # fmt: skip
def test_other_labels_are_refused(text, message):
    with pytest.raises(FormatError, match=message):
        gke_labels.loads(text)


def test_slices_of_sides_that_none_has_are_refused():
    for shape in ((), (0, 1), (2, 2, 2, 2), (2**9, 2**9)):
        with pytest.raises(TopologyError, match="one to three sides"):
            tpu_slices.network("TPU v5", shape)


def test_commands_take_labels_where_a_network_stands(tmp_path, capsys):
    path = tmp_path / "nodes.yaml"
    path.write_text(FORMS["yaml"])
    code, out, said = called(capsys, "bound", path, "--bandwidth", "90GB/s", "--json")
    assert (code, json.loads(out)["ranks"], said) == (0, 16, "")
    assert called(capsys, "convert", path, tmp_path / "n.json")[0] == 0
    assert jc.io.load(tmp_path / "n.json") == named_network("v5p:2x2x4")
    assert "--hosts is already stated in GKE's labels" in refused(
        capsys, "bound", path, "--hosts", 2
    )
