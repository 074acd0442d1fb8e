"""What notebooks show: small, without scripts, safe with hostile names."""

from __future__ import annotations

import dataclasses
import html.parser

import networkx as nx
import pytest

import jaxcoll as jc
from jaxcoll import pictures, topologies
from jaxcoll.schedule import Provenance

HOSTILE = "</td></table><script>alert(1)</script><img src=x onerror=alert(1)>"
TORUS = topologies.torus(2, 4)
SCHEDULE = jc.synthesize(TORUS, "all_reduce", "ring")
SHOWN = {
    "direct": TORUS,
    "switched": topologies.dgx_h100(2),
    "one rank": topologies.mesh(1),
    "many links": topologies.fully_connected(60),
    "schedule": SCHEDULE,
    "no sends": jc.synthesize(topologies.mesh(1), "all_gather", "direct"),
    "timeline": jc.simulate(SCHEDULE, 1e6),
    "empty timeline": jc.simulate(jc.synthesize(topologies.mesh(1), "all_gather", "direct"), 1),
}


class Elements(html.parser.HTMLParser):
    """The elements of a text, how often each; every one that is opened must be closed."""

    VOID = ("circle", "rect", "path")

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs) -> None:
        assert tag in self.VOID
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", SHOWN)
def test_they_are_small_and_whole(name):
    text = SHOWN[name]._repr_html_()
    assert len(text) < 30_000
    assert "script" not in text
    assert Elements(text).count["table"] == 1


def test_a_network_is_drawn_with_its_ranks_and_switches():
    count = Elements(SHOWN["switched"]._repr_html_()).count
    assert (count["circle"], count["rect"]) == (16, 3)
    assert "svg" not in Elements(SHOWN["many links"]._repr_html_()).count


def test_numbers_are_those_of_the_object():
    assert f'<td style="text-align:left">{SCHEDULE.num_sends}</td>' in SCHEDULE._repr_html_()
    timeline = SHOWN["timeline"]
    assert f"{timeline.algbw / 1e9:.4g} GB/s" in timeline._repr_html_()
    bars = Elements(SCHEDULE._repr_html_()).count["rect"]
    assert bars == SCHEDULE.num_steps
    assert Elements(pictures.bars([0.5] * 1000, "")).count["rect"] == 120


def test_names_stay_text():
    graph = nx.DiGraph()
    graph.add_edge(HOSTILE, "b", alpha=1e-6, bandwidth=1e9)
    graph.add_edge("b", HOSTILE, alpha=1e-6, bandwidth=1e9)
    topology = dataclasses.replace(jc.Topology.from_networkx(graph), name=HOSTILE * 20)
    schedule = jc.synthesize(topology, "all_reduce", "ring")
    schedule = schedule.with_provenance(Provenance(synthesizer=HOSTILE))
    for shown in (topology, schedule, jc.simulate(schedule, 1e6)):
        count = Elements(shown._repr_html_()).count
        assert "script" not in count
        assert "img" not in count
        assert len(shown._repr_html_()) < 10_000
