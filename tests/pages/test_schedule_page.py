"""The page of a schedule: complete, bounded, safe with hostile names, and alive in a browser."""

from __future__ import annotations

import dataclasses
import json
import re

import networkx as nx
import numpy as np
import pytest

import jaxcoll as jc
from jaxcoll import pages, topologies
from jaxcoll import pages as module
from jaxcoll.draw import link_loads
from tests.pages.browser import look, needs_chromium

TORUS = topologies.torus(2, 4)
SCHEDULE = jc.synthesize(TORUS, "all_reduce", "tacos", chunks=3)


def data_of(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_it_holds_every_message_and_send():
    data, timeline = data_of(pages.schedule(SCHEDULE, 1e6)), jc.simulate(SCHEDULE, 1e6)
    hops = data["hops"]
    assert len(hops["step"]) == len(timeline.hop_link)
    assert max(hops["start"]) == pytest.approx(1e6 * timeline.start.max(), rel=1e-5)
    moved = np.bincount(hops["link"], weights=hops["bytes"], minlength=TORUS.num_links)
    np.testing.assert_allclose(moved, link_loads(SCHEDULE).sum(axis=1) * 1e4, rtol=1e-5)
    np.testing.assert_allclose(moved, [link[3] for link in data["links"]], rtol=1e-5)
    chunks = np.repeat(np.arange(24), np.diff(data["chunks"]["ptr"]))
    assert sorted(
        zip(chunks, data["chunks"]["step"], data["chunks"]["link"], strict=True)
    ) == sorted(
        zip(SCHEDULE.chunk, SCHEDULE.step, SCHEDULE.edges.path_link[SCHEDULE.edge], strict=True)
    )


def test_it_says_by_which_order_it_was_timed():
    plain, waiting = (
        re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", pages.schedule(SCHEDULE, 1e6, execution=machine))
        for machine in (None, "processes")
    )
    assert dict(plain)["order"] == "each link works by itself"
    assert dict(plain)["link model"] == "astra"
    assert dict(waiting)["order"] == "a rank&#x27;s permutes follow one another"
    assert "link model" not in dict(waiting)
    run = jc.simulate(SCHEDULE, 1e6, execution="processes")
    assert dict(waiting)["time"] == f"{run.time * 1e6:.5g} µs"
    assert "in order 'rounds'" in repr(run)
    assert "by model 'astra'" in repr(jc.simulate(SCHEDULE, 1e6))


def test_it_asks_for_nothing():
    page = pages.schedule(SCHEDULE, 1e6)
    assert "default-src 'none'" in page
    assert set(re.findall(r"https?://[^\"' ]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert not re.findall(r"<(?:link|img|script)[^>]+(?:src|href)=\"(?!data:,\")", page)


def test_large_schedules_are_thinned_and_the_page_says_so(monkeypatch):
    monkeypatch.setattr(module, "MOST_HOPS", 50)
    monkeypatch.setattr(module, "MOST_ROWS", 7)
    monkeypatch.setattr(module, "MOST_LINKS", 10)
    page = pages.schedule(SCHEDULE, 1e6)
    notes = re.findall(r"<p class=note>(.*?)</p>", page)
    data = data_of(page)
    assert len(data["hops"]["step"]) <= 100
    assert len(data["links"]) == 7
    assert data["network"] is None
    assert "The 7 links that carry most of 24 have rows below." in notes
    assert any("can be looked at" in note and "totals are of all" in note for note in notes)
    assert any("chunks, the first" in note for note in notes)
    assert any("is not drawn" in note for note in notes)


def test_links_of_a_thinned_schedule_are_as_busy_as_they_are(monkeypatch):
    """Over time by all messages: links that are busy nearly always do not look idle."""
    schedule = jc.synthesize(topologies.ring(8), "all_gather", "ring", chunks=16)
    assert data_of(pages.schedule(schedule, 1e8))["density"] is None
    monkeypatch.setattr(module, "MOST_HOPS", 20)
    data, timeline = data_of(pages.schedule(schedule, 1e8)), jc.simulate(schedule, 1e8)
    assert len(data["hops"]["step"]) <= len(timeline.hop_link) / 4
    density = data["density"]
    assert density["seconds"] <= data["seconds"]
    levels = np.array([[int(digit, 36) / 35 for digit in row] for row in density["rows"]])
    assert levels.shape == (16, module.MOST_BINS)
    np.testing.assert_allclose(levels.mean(axis=1), timeline.utilization(), atol=1 / 35)
    exact = timeline.utilization(module.MOST_BINS)
    assert ((levels >= exact - 1e-6) & (levels < exact + 1 / 35 + 1e-6)).all()
    assert timeline.mean_utilization() > 0.9


@pytest.mark.parametrize("name", ["direct", "ring"])
def test_its_size_does_not_grow_with_the_schedule(name, monkeypatch):
    monkeypatch.setattr(module, "MOST_HOPS", 1000)
    monkeypatch.setattr(module, "MOST_ROWS", 50)
    monkeypatch.setattr(module, "MOST_LINKS", 300)
    make = topologies.fully_connected if name == "direct" else topologies.ring
    sizes = [len(pages.schedule(jc.synthesize(make(n), "all_gather", name), 1e6)) for n in (40, 80)]
    assert sizes[1] < 1.3 * sizes[0] < 130_000


def test_what_has_no_sends_has_a_page():
    schedule = jc.synthesize(topologies.mesh(1), "all_gather", "direct")
    assert data_of(pages.schedule(schedule, 1))["hops"]["step"] == []


HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror=window.hacked=1>"


def hostile_schedule() -> jc.Schedule:
    link = {"alpha": 1e-6, "bandwidth": 1e9}
    graph = nx.DiGraph()
    graph.add_edge(HOSTILE, "b", **link)
    graph.add_edge("b", HOSTILE, **link)
    topology = dataclasses.replace(jc.Topology.from_networkx(graph), name=HOSTILE)
    return jc.synthesize(topology, "all_reduce", "ring")


def test_names_are_escaped():
    page = pages.schedule(hostile_schedule(), 1e6)
    assert "hacked = 1</script>" not in page
    assert "<img" not in page
    assert data_of(page)["links"][0][0].startswith(HOSTILE)


@needs_chromium
def test_stepping_and_following_change_what_is_shown(tmp_path):
    found = look(
        pages.schedule(SCHEDULE, 1e6),
        """
        const colours = () => lines.map((line) => line.style.stroke).join();
        const seen = { steps: [], colours: [] };
        const note = () => {
          seen.steps.push(byId("where").textContent); seen.colours.push(colours());
        };
        const press = (key) => document.dispatchEvent(new KeyboardEvent("keydown", { key }));
        note(); byId("on").click(); note(); press("ArrowRight"); note(); press("End"); note();
        byId("step").value = 3; byId("step").dispatchEvent(new Event("input")); note();
        byId("chunk").value = "5"; byId("chunk").dispatchEvent(new Event("change")); note();
        byId("link").value = "2"; byId("link").dispatchEvent(new Event("change"));
        press(" "); seen.playing = byId("play").textContent;
        return { ...seen, said: byId("said").textContent, link: byId("hovered").textContent,
                 chunks: byId("chunk").length, discs: discs.length, lines: lines.length };
        """,
        tmp_path,
    )
    assert (found["faults"], found["requests"], found["console"]) == ([], [], [])
    assert [text.split()[1] for text in found["steps"]] == ["0", "1", "2", "13", "3", "3"]
    assert found["colours"][4] != found["colours"][5]
    assert f"Chunk 5 of rank {SCHEDULE.collective.owner[5]}" in found["said"]
    assert found["link"].startswith(f"Link {TORUS.link_name(2)}")
    assert "50 GB/s" in found["link"]
    assert (found["chunks"], found["discs"], found["lines"]) == (25, 8, 24)
    assert found["playing"] == "Pause"


@needs_chromium
def test_hostile_names_stay_text_in_a_browser(tmp_path):
    found = look(
        pages.schedule(hostile_schedule(), 1e6),
        "byId('link').value = '0'; byId('link').onchange({ target: byId('link') });"
        "return { hacked: window.hacked || 0, link: byId('hovered').textContent };",
        tmp_path,
    )
    assert (found["hacked"], found["faults"], found["console"]) == (0, [], [])
    assert "<img" in found["link"]
