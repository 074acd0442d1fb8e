"""``--without`` and ``--slow``: the network that the library gives, or one line for wrong words."""

from __future__ import annotations

import json

import click
import pytest

import jaxcoll as jc
from jaxcoll.cli.failing import after_failures
from tests.cli.calls import called, refused

TORUS = jc.topologies.torus(3, 3)
RAILS = jc.topologies.multi_rail(3, 2)


@pytest.mark.parametrize(
    ("whole", "without", "slow", "left"),
    [
        (TORUS, ["0-1"], [], TORUS.without([(0, 1), (1, 0)])),
        (TORUS, ["0->1"], [], TORUS.without([(0, 1)])),
        (TORUS, ["0-1,5", "3-4"], [], TORUS.without([(0, 1), (1, 0), (3, 4), (4, 3)], [5])),
        (TORUS, [], ["0-1=0.5"], TORUS.scaled({(0, 1): 0.5, (1, 0): 0.5})),
        (TORUS, [], ["0->1=25%"], TORUS.scaled({(0, 1): 0.25})),
        (TORUS, ["8"], ["0-1=0.5"], TORUS.scaled({(0, 1): 0.5, (1, 0): 0.5}).without(ranks=[8])),
        (RAILS, ["rail 1"], [], RAILS.without(switches=["rail 1"])),
        (RAILS, ["host 1"], [], RAILS.without(ranks=["host 1"])),
        (RAILS, ["7"], [], RAILS.without(switches=[7])),
        (RAILS, ["host 0 rank 1-rail 1"], [], RAILS.without([(1, 7), (7, 1)])),
        (RAILS, [], ["rail 1=1/2", "host 0=0.5"], RAILS.scaled({"rail 1": 0.5, "host 0": 0.5})),
    ],
)
def test_words_mean_what_the_library_does(whole, without, slow, left):
    assert after_failures(whole, without, slow) == left


@pytest.mark.parametrize(
    ("without", "slow", "text"),
    [
        (["0-9"], [], "there is no link"),
        (["0-"], [], "names one end of a link only; type 0-1"),
        ([","], [], "nothing stands between two commas"),
        (["9"], [], "there is no rank 9"),
        (["hots 1"], [], "have no names"),
        ([], ["0-1"], "names no factor"),
        ([], ["0-1=x"], "names no factor"),
        ([], ["0-1=-1"], "names no factor"),
        ([], ["0-1=1/0"], "names no factor"),
        ([], ["0-1=nan"], "names no factor"),
        ([], ["0-1=0"], "a factor of bandwidth must be a finite number above 0"),
        ([], ["9=0.5"], "the network has no vertex 9"),
        (["0-1,1-2,0-2,0-3,0-6"], [], "cut in two"),
        (["5,4-5"], [], "rank 5 is removed with all its links"),
    ],
)
def test_wrong_words_are_refused(without, slow, text):
    with pytest.raises((click.UsageError, jc.errors.TopologyError), match=text):
        after_failures(TORUS, without, slow)


def test_commands_show_what_is_missing(capsys, tmp_path):
    code, out, _ = called(capsys, "show", "torus:3x3", "--without", "0-1", "--slow", "3-4=0.5")
    assert code == 0
    assert out.startswith("torus 3x3 less 0-1, 3-4 at 0.5: 9 ranks")
    assert "down: 0-1\nother speed: 3-4 at 0.5\n" in out
    failed = ("--without", "0-1", "--size", "1MiB")
    code, out, err = called(capsys, "synth", "torus:3x3", *failed)
    assert (code, err) == (0, "network: torus 3x3 less 0-1\n")
    code, out, _ = called(capsys, "bound", "torus:3x3", *failed, "--json")
    left = TORUS.without([(0, 1), (1, 0)])
    least = jc.bound(left, "all_reduce", 2**20).time
    assert json.loads(out)["bounds"][0]["seconds"] == least
    path = tmp_path / "left.json"
    assert called(capsys, "convert", "torus:3x3", path, "--without", "0-1")[0] == 0
    assert jc.io.load(path) == left


def test_what_it_costs_and_what_the_ring_would_have_cost(capsys):
    only = ("--only", "joint_trees,ring", "--size", "64MiB")
    _, out, err = called(capsys, "compare", "torus:3x3", "--without", "0-1", *only)
    assert err == "network: torus 3x3 less 0-1\n"
    rows = [line for line in out.splitlines() if line.startswith(("joint_trees", "ring"))]
    assert len(rows) == 2
    assert "fastest at 64MiB: joint_trees" in out


def test_a_schedule_has_no_wires_to_lose(capsys, tmp_path):
    path = tmp_path / "schedule.json"
    jc.io.save(path, jc.synthesize(TORUS, "all_reduce", "ring"))
    for command in (("show", path), ("convert", path, tmp_path / "other.json")):
        assert "apply to a network" in refused(capsys, *command, "--without", "0-1")
