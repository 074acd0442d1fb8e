"""GraphML, GEXF and InfraGraph: what editors and models say, within bounds."""

from __future__ import annotations

import sys
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings

import jaxcoll as jc
from jaxcoll.errors import AssumptionWarning, FormatError
from jaxcoll.io import graph_files, infragraph
from tests.io.mutations import refuses
from tests.io.research.losses import unless_named
from tests.strategies import topologies

PAIR = """
name: pair
devices:
- name: nic
  components:
  - {name: port, count: 2, choice: custom}
- name: box
  components:
  - {name: xpu, count: 2, choice: xpu}
  - {name: nvsw, count: 1, choice: switch}
  - {name: nic, count: 1, choice: device}
  links:
  - name: nvlink
    physical: {bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 450},
               latency: {choice: ns, ns: 500}}
  - {name: pcie}
  edges:
  - {ep1: {component: xpu}, ep2: {component: nvsw}, scheme: many2many, link: nvlink}
  - {ep1: {component: "xpu[0:2]"}, ep2: {component: "nic[0].port[0:2]"}, scheme: one2one,
     link: pcie}
links:
- {name: wire, physical: {bandwidth: {gigabits_per_second: 400}}}
instances:
- {name: host, device: box, count: 2}
edges:
- {ep1: {instance: "host[0]", component: "nic.port"},
   ep2: {instance: "host[1]", component: "nic.port"}, scheme: one2one, link: wire}
"""
GIVEN: dict[str, Any] = {"alpha": 1e-6, "bandwidth": 50e9}


# ---------------------------------------------------------------------- GraphML, GEXF


@settings(deadline=None, max_examples=20)
@given(topologies(max_ranks=8, switches=True, exact=True))
def test_graphs_survive(network):
    survives(network)


@pytest.mark.slow
@settings(deadline=None, max_examples=1000)
@given(topologies(max_ranks=8, switches=True, exact=True))
def test_a_thousand_graphs_survive(network):
    survives(network)


def survives(network):
    for form in graph_files.FORMATS:
        with unless_named("does not fit the float"):
            back = graph_files.loads(graph_files.dumps(network, form))
            assert back == network
            assert back.vertex_names == network.vertex_names


def test_graphs_of_others_take_the_links_that_are_given():
    text = "\n".join(nx.generate_graphml(nx.cycle_graph(5)))
    assert graph_files.loads(text, **GIVEN) == jc.topologies.ring(5, **GIVEN)
    with pytest.raises(FormatError, match="has no alpha; set it or pass alpha="):
        graph_files.loads(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<graphml><graph/><graph/></graphml>", "one <graph>"),
        ("<graphml>", "not XML"),
        ("<html/>", "expected <graphml>"),
        ('<!DOCTYPE x [<!ENTITY a "ha">]><graphml>&a;</graphml>', "line 1: entities"),
        ("<graphml><graph edgedefault='directed'>words</graph></graphml>", "text inside <graph>"),
        ("<graphml><graph edgedefault='directed'><edge/></graph></graphml>", "refused|networkx"),
        ("<graphml>" + "<graph>" * 100 + "</graphml>", "more than 64 deep"),
    ],
)
def test_other_graphs_are_refused(text, words):
    with pytest.raises(FormatError, match=words):
        graph_files.loads(text, **GIVEN)


def test_without_networkx_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(ModuleNotFoundError, match="pip install networkx"):
        graph_files.loads("<graphml/>")


# ---------------------------------------------------------------------- InfraGraph


def test_a_model_is_expanded():
    with pytest.warns(AssumptionWarning, match="links pcie, wire say no latency"):
        network = infragraph.loads(PAIR)
    # Two GPUs, an NVSwitch and two ports in each of two hosts.
    assert (network.num_ranks, network.num_vertices) == (4, 10)
    assert network.vertex_names[:3] == ("host.0.xpu.0", "host.0.xpu.1", "host.1.xpu.0")
    # Per host 2 to the NVSwitch and 2 to the ports, and 2 wires between; each both ways.
    assert network.num_links == 2 * (2 * 4 + 2)
    name = network.vertex_names.index
    links = dict(
        zip(zip(network.src.tolist(), network.dst.tolist(), strict=True),
            zip(network.alpha.tolist(), network.bandwidth.tolist(), strict=True), strict=True)
    )  # fmt: skip
    assert links[0, name("host.0.nvsw.0")] == (5e-7, 450e9)
    assert links[name("host.0.nic.0.port.1"), name("host.1.nic.0.port.1")] == (0.7e-6, 50e9)
    assert links[1, name("host.0.nic.0.port.1")] == (0.7e-6, 25e9)
    stated = infragraph.loads(PAIR, alpha=2e-6, bandwidth=64e9)
    assert sorted(set(stated.alpha.tolist())) == [5e-7, 2e-6]
    assert 64e9 in stated.bandwidth


def test_counts_of_links_are_kept():
    """The package's own graph has one edge between two components, whatever the model says."""
    edge = "  - {ep1: {component: xpu}, ep2: {component: nvsw}, scheme: many2many, link: nvlink}\n"
    doubled = PAIR.replace(edge, edge * 2)
    one, two = (infragraph.loads(text, **GIVEN) for text in (PAIR, doubled))
    assert two.num_links == one.num_links + 2 * 4


def test_rings_and_slices():
    text = """{"name": "r", "devices": [{"name": "d", "components":
      [{"name": "x", "count": 6, "choice": "xpu"}], "links": [{"name": "l"}], "edges": [
      {"ep1": {"component": "x"}, "ep2": {"component": "x"}, "scheme": "ring", "link": "l"}]}],
      "instances": [{"name": "i", "device": "d", "count": 1}]}"""
    assert infragraph.loads(text, **GIVEN) == jc.topologies.ring(6, **GIVEN)


test_other_models_are_refused = refuses(
    lambda text: infragraph.loads(text, **GIVEN), FormatError, PAIR, "infragraph"
)


def test_devices_that_hold_themselves_are_refused():
    text = PAIR.replace(
        "{name: port, count: 2, choice: custom}", "{name: nic, count: 2, choice: device}"
    )
    with pytest.raises(FormatError, match="contains itself"):
        infragraph.loads(text, **GIVEN)


def test_without_yaml_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pyyaml"):
        infragraph.loads(PAIR)


def test_a_model_under_one_key_is_the_model():
    """The project's own examples begin so."""
    lines = "\n".join(f"  {line}" for line in PAIR.strip().splitlines())
    under = infragraph.loads(f"infrastructure:\n{lines}\n", **GIVEN)
    assert under == infragraph.loads(PAIR, **GIVEN)
    assert jc.io.kind_of(f"infrastructure:\n{lines}\n") == "infragraph"
