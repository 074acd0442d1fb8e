"""Drawings show every link, send and cell once."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.collections import QuadMesh
from matplotlib.patches import Circle

import jaxcoll as jc
from jaxcoll import draw, topologies
from jaxcoll.draw.bandwidth import LOADS
from jaxcoll.pictures.places import RADIUS, bows, curve_middles, host_names, layout

TOPOLOGIES = [
    topologies.torus(2, 4),
    topologies.torus(4, 4),
    topologies.torus(3, 3, 3),
    topologies.mesh(5),
    topologies.ring(6),
    topologies.ring(2),
    topologies.mesh(1),
    topologies.hypercube(4),
    topologies.fully_connected(5),
    topologies.star(6),
    topologies.switch(5),
    topologies.dgx_h100(2),
    topologies.dgx_a100(3),
    topologies.mi250(2),
    topologies.multi_rail(3, 4),
    topologies.dragonfly(4, 5),
    topologies.fat_tree(2, 3),
    topologies.leaf_spine(3, 4, 2),
    topologies.dgx2(),
    jc.Topology(2, *np.array([[0, 0, 1], [1, 1, 0], [1, 1, 1], [1, 1, 1]])),  # parallel links
]


def named(figure, word):
    """The artists of a figure whose gid is ``word`` and a number."""
    return [a for a in figure.axes[0].patches if (a.get_gid() or "").split()[0] == word]


def legend(figure):
    """The words in the legend of a figure's first axes."""
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def saved(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=40)
    return buffer.getvalue()


# Drawn in a second or more, for their many links.
LARGE = ("torus 4x4", "hypercube 4", "fat tree 2-ary 3-level", "3 hosts of 4 on rails")


@pytest.mark.parametrize(
    "topology",
    [pytest.param(t, marks=[pytest.mark.slow] * (t.name in LARGE)) for t in TOPOLOGIES],
    ids=repr,
)
def test_every_vertex_and_link_is_drawn(topology):
    figure = draw.draw_topology(topology)
    assert len(named(figure, "vertex")) == topology.num_vertices
    assert len(named(figure, "link")) == topology.num_links
    assert not named(figure, "send")
    assert topology.num_links > 70 or saved(figure).startswith(b"\x89PNG")


def laid_out(topology):
    columns = (topology.num_vertices, topology.src, topology.dst, topology.bandwidth)
    return layout(topology.num_ranks, *columns, topology.placement)


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=repr)
def test_vertices_and_the_curves_of_links_stand_apart(topology):
    found = laid_out(topology)
    apart = np.linalg.norm(found.place[:, None] - found.place, axis=-1)
    assert (apart[~np.eye(len(apart), dtype=bool)] > 2 * RADIUS).all()
    bow = bows(found, topology.src, topology.dst)
    middles = curve_middles(found, bow, topology.src, topology.dst)
    assert len({tuple(middle) for middle in np.round(middles, 3)}) == topology.num_links


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=repr)
def test_frames_hold_their_host_and_nothing_else(topology):
    found = laid_out(topology)
    for host, (low, high) in zip(found.hosts, found.frames, strict=True):
        within = ((found.place > low) & (found.place < high)).all(axis=1)
        assert set(np.flatnonzero(within)) == set(host)
        half = found.width[list(host)] / 2
        assert (found.place[list(host)][:, 0] - half >= low[0]).all()
        assert (found.place[list(host)][:, 0] + half <= high[0]).all()


@pytest.mark.parametrize(
    ("topology", "hosts", "first"),
    [
        (topologies.dgx_h100(2), 2, "host 0"),
        (topologies.dgx_a100(3), 3, "host 0"),
        (topologies.mi250(2), 2, "host 0"),
        (topologies.dragonfly(4, 5), 4, "group 0"),
        (topologies.multi_rail(3, 4), 3, "host 0"),
        (topologies.torus(4, 4), 0, None),
        (topologies.fat_tree(2, 3), 0, None),
    ],
)
def test_hosts_are_found_and_named(topology, hosts, first):
    found = laid_out(topology)
    assert len(found.hosts) == hosts
    ranks = [v for host in found.hosts for v in host if v < topology.num_ranks]
    assert sorted(ranks) == (list(range(topology.num_ranks)) if hosts else [])
    assert next(iter(host_names(topology.vertex_names, found.hosts)), None) == first


def test_links_meet_a_bar_where_they_stand():
    """Every link of a DGX is upright: its rank stands under the switch that is drawn as a bar."""
    topology = topologies.dgx_h100(4)
    begin, end = laid_out(topology).ends(topology.src, topology.dst)
    np.testing.assert_allclose(begin[:, 0], end[:, 0])


def test_a_tree_of_switches_stands_tier_above_tier():
    topology = topologies.fat_tree(4, 3)
    heights = np.round(laid_out(topology).place[topology.num_ranks :, 1], 6)
    assert sorted(np.unique(heights, return_counts=True)[1]) == [16, 16, 16]
    assert heights.min() > laid_out(topology).place[: topology.num_ranks, 1].max()


def test_a_chunk_is_followed_over_every_link_of_its_paths():
    topology = topologies.torus(2, 4)
    schedule = jc.synthesize(topology, "all_gather", "ring")
    sends = np.flatnonzero(schedule.chunk == 3)
    figure = draw.draw_topology(topology, schedule, chunk=3)
    assert len(named(figure, "send")) == schedule.edges.hops[schedule.edge[sends]].sum()
    bar = figure.axes[1]
    assert bar.get_ylabel() == "step"
    steps = [text.get_text() for text in bar.get_yticklabels()]
    assert steps == [str(step) for step in np.unique(schedule.step[sends])]
    assert "chunk 3" in figure.axes[0].get_title()


def test_sends_that_add_are_dashed():
    topology = topologies.ring(4)
    schedule = jc.synthesize(topology, "all_reduce", "ring")
    styles = {a.get_linestyle() for a in named(draw.draw_topology(topology, schedule), "send")}
    assert styles == {"-", "--"}


def test_many_steps_are_a_bar_of_some():
    topology = topologies.ring(40)
    schedule = jc.synthesize(topology, "all_gather", "ring")
    bar = draw.draw_topology(topology, schedule).axes[1]
    assert [text.get_text() for text in bar.get_yticklabels()] == [*map(str, range(0, 20, 2))]


def test_links_are_coloured_by_their_share_of_the_busiest():
    topology = topologies.dgx_h100(2)
    schedule = jc.synthesize(topology, "all_reduce", "ring")
    figure = draw.draw_loads(schedule)
    load = draw.link_loads(schedule).sum(axis=1) / topology.bandwidth
    share = load / load.max()
    colour = {int((a.get_gid() or "").split()[1]): a.get_edgecolor() for a in named(figure, "link")}
    assert len(colour) == topology.num_links
    for link, value in enumerate(share.tolist()):
        assert colour[link] == pytest.approx(LOADS(value))
    assert f"{100 * share.mean():.0f} % on average" in figure.axes[0].get_title()


def test_the_kinds_of_links_are_named():
    figure = draw.draw_topology(topologies.dgx_h100(2))
    assert legend(figure) == [
        "32 links of 450 GB/s, 0.7 µs", "32 links of 50 GB/s, 2 µs",
    ]  # fmt: skip
    assert draw.draw_topology(topologies.ring(4)).axes[0].get_legend() is None


def test_loads_are_what_the_sends_carry():
    topology = topologies.torus(2, 4)
    schedule = jc.synthesize(topology, "all_reduce", "tacos", chunks=3)
    loads = draw.link_loads(schedule)
    assert loads.shape == (topology.num_links, schedule.num_steps)
    assert loads.sum() == pytest.approx(100.0 * schedule.num_sends / 24)  # 8 shards of 3 chunks
    send = 17
    assert loads[schedule.edges.path(int(schedule.edge[send]))[0], schedule.step[send]] > 0


def test_loads_count_every_link_of_a_path():
    schedule = jc.synthesize(topologies.switch(4), "all_gather", "direct")
    assert draw.link_loads(schedule).sum() == pytest.approx(2 * 12 * 25.0)


def test_heat_maps_share_a_scale_and_have_a_cell_for_each_link_and_step():
    topology = topologies.torus(2, 4)
    schedules = [jc.synthesize(topology, "all_reduce", name) for name in ("ring", "tacos")]
    figure = draw.draw_heatmap(*schedules, labels=["one", "two"])
    meshes = [a for axes in figure.axes for a in axes.collections if isinstance(a, QuadMesh)]
    panels = meshes[: len(schedules)]
    for panel, schedule in zip(panels, schedules, strict=True):
        shown = np.ma.filled(np.ma.asarray(panel.get_array()), 0.0)
        assert shown.shape == (topology.num_links, schedule.num_steps)
        np.testing.assert_array_equal(shown, draw.link_loads(schedule))
    assert panels[0].norm is panels[1].norm
    titles = [axes.get_title().split("\n")[0] for axes in figure.axes]
    assert [title for title in titles if title] == ["one", "two"]
    assert len(figure.axes[0].get_yticklabels()) == topology.num_links
    assert saved(figure).startswith(b"\x89PNG")


def test_heat_maps_of_timelines_show_how_long_links_are_busy():
    topology = topologies.torus(2, 4)
    made = [jc.synthesize(topology, "all_reduce", name) for name in ("ring", "tacos")]
    runs = [jc.simulate(schedule, 1e6) for schedule in made]
    figure = draw.draw_heatmap(*runs)
    meshes = [a for axes in figure.axes for a in axes.collections if isinstance(a, QuadMesh)]
    for mesh, run in zip(meshes, runs, strict=False):
        shown = np.ma.filled(np.ma.asarray(mesh.get_array()), 0.0)
        np.testing.assert_allclose(shown.mean(axis=1), 100 * run.utilization())
        assert np.asarray(mesh.get_coordinates())[0, -1, 0] == pytest.approx(run.time * 1e6)
    assert figure.axes[0].get_xlabel() == "time (µs)"
    assert "GB/s" in figure.axes[2].get_title()


def test_heat_map_of_a_schedule_without_sends():
    schedule = jc.synthesize(topologies.mesh(1), "all_gather", "direct")
    assert saved(draw.draw_heatmap(schedule)).startswith(b"\x89PNG")
    assert saved(draw.draw_heatmap(jc.simulate(schedule, 1))).startswith(b"\x89PNG")
    assert saved(draw.draw_loads(schedule)).startswith(b"\x89PNG")


def test_bandwidths_are_lines_with_the_bound():
    sizes = [2**10, 2**20, 2**30]
    algbw = {f"name {i}": [1e9, 2e9, 3e9 + i] for i in range(9)}
    figure = draw.draw_algbw(sizes, algbw, bound=[4e9] * 3)
    upper, lower = figure.axes
    assert len(upper.lines) == len(lower.lines) == 10
    assert legend(figure) == [*algbw, "bound"]
    assert lower.lines[0].get_ydata() == pytest.approx([25.0, 50.0, 75.0])
    looks = {(a.get_color(), a.get_marker(), a.get_linestyle()) for a in upper.lines}
    assert len(looks) == 10
    assert [text.get_text() for text in lower.get_xticklabels()] == ["1 KiB", "1 MiB", "1 GiB"]
    assert len(draw.draw_algbw(sizes, algbw).axes) == 1


def test_predictions_are_points_in_a_panel_each():
    points = {f"machine {i}": [(1e-3, 2e-3), (2e-3, 2e-3 * (i + 1))] for i in range(6)}
    figure = draw.draw_predictions({**points, "nobody": []})
    panels = [axes for axes in figure.axes if axes.axison]
    assert [axes.get_title() for axes in panels] == [f"{name}, 2" for name in points]
    for axes, pairs in zip(panels, points.values(), strict=True):
        shown = np.asarray(axes.collections[-1].get_offsets())
        np.testing.assert_allclose(shown, np.asarray(pairs))
        assert axes.get_xlim() == axes.get_ylim()
        low, high = axes.get_xlim()
        assert low < 1e-3 < 12e-3 < high
    assert saved(figure).startswith(b"\x89PNG")


def test_times_are_a_curve_each_by_size():
    figure = draw.draw_times({"measured": [(2**20, 2e-3), (2**10, 1e-3)], "at best": [(8, 1e-6)]})
    (axes,) = figure.axes
    assert legend(figure) == ["measured", "at best"]
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [2**10, 2**20])
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), [1e-3, 2e-3])


@pytest.mark.parametrize("drawn", [draw.draw_predictions, draw.draw_times])
def test_times_that_no_logarithm_shows_are_refused(drawn):
    for given, said in (
        ({}, "to draw"),
        ({"one": []}, "to draw"),
        ({"one": [(0.0, 1.0)]}, "a number of one"),
        ({"one": [(1.0,)]}, "of one must be pairs of numbers"),
        ([1.0], "points|curves"),
    ):
        with pytest.raises(jc.errors.FormatError, match=said):
            drawn(given)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(1, "1 B"), (1000, "1e+03 B"), (1536, "1.5 KiB"), (2**30, "1 GiB"), (2**42, "4.1e+03 GiB")],
)
def test_bytes_come_with_a_unit_that_fits(nbytes, text):
    assert draw.format_bytes(nbytes) == text


def test_what_does_not_fit_is_refused():
    small, large = topologies.ring(3), topologies.ring(4)
    schedule = jc.synthesize(small, "all_gather", "ring")
    other = jc.synthesize(large, "all_gather", "ring")
    for call, expected in [
        (lambda: draw.draw_topology(large, schedule), "another network"),
        (lambda: draw.draw_topology(small, schedule, chunk=3), "chunk must be 0..2, got 3"),
        (lambda: draw.draw_topology(small, chunk=0), "needs the schedule"),
        (lambda: draw.draw_heatmap(), "at least one schedule"),
        (lambda: draw.draw_heatmap(schedule, other), "the same network"),
        (lambda: draw.draw_heatmap(schedule, jc.simulate(schedule, 1)), "must be a Schedule"),
        (lambda: draw.draw_heatmap(schedule, labels=["a", "b"]), "1 schedules need as many labels"),
        (lambda: draw.draw_algbw([1, 2], {"ring": [1.0]}), "ring has 1 values for 2 sizes"),
    ]:
        with pytest.raises(jc.errors.ScheduleError, match=expected):
            call()


def test_the_library_does_without_matplotlib():
    code = "import sys, jaxcoll; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_a_network_has_lost_is_drawn_where_it_was():
    whole = topologies.torus(3, 3)
    left = whole.without(links=[(0, 1), (1, 0), (3, 4)], ranks=[8])
    figure = draw.draw_topology(left)
    drawn = {str(patch.get_gid()) for patch in figure.axes[0].patches}
    missing = {gid for gid in drawn if gid.startswith("missing")}
    assert missing == {"missing vertex 8", "missing link 0 1", "missing link 3 4"}
    assert not {str(p.get_gid()) for p in draw.draw_topology(whole).axes[0].patches} & missing
    places = layout(9, 9, whole.src, whole.dst, whole.bandwidth, whole.placement).place
    spots = {p.get_gid(): p for p in figure.axes[0].patches if isinstance(p, Circle)}
    for gid, rank in (("vertex 7", 7), ("missing vertex 8", 8), ("vertex 0", 0)):
        assert spots[gid].center == pytest.approx(tuple(places[rank]))
