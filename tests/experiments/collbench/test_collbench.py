"""The benchmark of synthesis: problems, best known schedules, and scores of others' files."""

from __future__ import annotations

import json

import pytest

import jaxcoll as jc
from experiments import recording
from experiments.collbench import __main__ as command
from experiments.collbench import known, scores
from experiments.collbench.problems import NETWORKS, ORDERS, SIZES, Problem, meant_by, network
from experiments.config import configuration, configure
from experiments.study import ConfigError
from tests.experiments.runs import small_run

PROBLEM = Problem("ring-4", "all_gather", "256MiB", "links")


def rows_of_study():
    return small_run("collbench").rows


def test_there_are_forty_networks_and_the_large_run_takes_all():
    assert len(NETWORKS) == 40
    assert configuration("collbench", "paper").networks == tuple(NETWORKS)
    digests = {network(name).links_digest for name in NETWORKS}
    assert len(digests) == 40
    assert not any(network(name).in_network for name in NETWORKS)


def test_nothing_is_faster_than_its_bound():
    rows = rows_of_study()
    assert len(rows) == 3 * 2 * 2 * 3
    for row in rows:
        assert row["best / bound"] >= 1 - 1e-9
        assert row["is optimal"] == (row["best / bound"] <= 1 + 1e-9)
    assert any(row["is optimal"] for row in rows)


def test_a_ring_of_both_ways_is_as_fast_as_its_ports():
    (row,) = [r for r in rows_of_study() if scores.by_problem([r]).get(PROBLEM)]
    # Three shards of 64 MiB come in over two links of 50 GB/s.
    ports = 1.5 * 2**26 / 50e9 * 1e6
    assert ports <= row["bound us"] <= row["best us"] < 1.01 * ports


def test_files_of_best_known_schedules_are_what_the_rows_say(tmp_path):
    config = configure(["experiment=collbench", f"results={tmp_path}", *TINY])[1]
    first = known.best_known(config)
    for row in first:
        problem = Problem(*(row[name] for name in ("network", "collective", "size", "order")))
        made = jc.io.load(tmp_path / "best" / f"{problem.name}.json")
        assert made.digest.startswith(row["digest"])
        assert problem.seconds(made) * 1e6 == pytest.approx(row["best us"], rel=1e-12)
        jc.verify(made)
    # Rows that were made are kept: a second run synthesizes nothing.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known, "synthesize", None)
        assert known.best_known(config) == first


TINY = ["networks=[ring-4]", "collectives=[all_gather]", "sizes=[64KiB]", "synthesizers=[ring]"]


def test_other_settings_begin_anew(tmp_path):
    def made(*more):
        return known.best_known(
            configure(["experiment=collbench", f"results={tmp_path}", *TINY, *more])[1]
        )

    assert made()[0]["synthesizer"] == "ring"
    assert made("synthesizers=[direct]")[0]["synthesizer"] == "direct"


def test_names_of_files_name_problems():
    assert meant_by(PROBLEM.name) == [PROBLEM]
    assert len(meant_by("ring-4.all_gather.256MiB")) == len(ORDERS)
    assert set(meant_by("ring-4.all_gather")) == {
        Problem("ring-4", "all_gather", size, order) for size in SIZES for order in ORDERS
    }
    for stem, said in (
        ("ring-4", "NETWORK.COLLECTIVE"),
        ("ring-5.all_gather", "no network is called 'ring-5'"),
        ("ring-4.all_gather.1MiB", "no size is called '1MiB'; known: 64KiB"),
        ("ring-4.all_gather.64KiB.blocks", "no order"),
    ):
        with pytest.raises(ConfigError, match=said):
            meant_by(stem)


@pytest.fixture
def folder(tmp_path):
    ring = network("ring-4")
    gather = jc.synthesize(ring, "all_gather", "ring", chunks=2)
    jc.io.save(tmp_path / "ring-4.all_gather.256MiB.json", gather)
    jc.io.msccl.save(tmp_path / "ring-4.all_gather.256MiB.steps.xml", gather)
    return tmp_path


def test_a_folder_is_scored(folder, capsys):
    best = scores.by_problem(rows_of_study())
    rows = list(scores.beside(scores.scores(folder), best))
    assert [row["order"] for row in rows] == ["links", "rounds", "steps"]
    for row in rows:
        assert row["us"] / row["/ best known"] == pytest.approx(row["best known us"])
        assert row["/ bound"] >= 1 - 1e-9
    told = scores.summary(rows, best)
    assert told[0].startswith("links: 1 of 12 problems, ")
    # A best known time that is twice as long is beaten.
    slow = {p: {**row, "best us": 2 * row["best us"]} for p, row in best.items()}
    faster = list(scores.beside(scores.scores(folder), slow))
    assert "1 faster than it" in scores.summary(faster, slow)[0]


def test_files_that_are_not_right_have_no_score(folder):
    ring, torus = network("ring-4"), network("torus-2x4")
    wrong = jc.synthesize(ring, "all_reduce", "ring")
    jc.io.save(folder / "ring-4.all_to_all.json", wrong)
    jc.io.save(folder / "switch-8.all_gather.json", jc.synthesize(torus, "all_gather", "bfb"))
    (folder / "somewhere.json").write_text("{}")
    text = (folder / "ring-4.all_gather.256MiB.json").read_text()
    (folder / "ring-4.all_gather.64KiB.json").write_text(text[: len(text) // 2])
    refused = {s.file: s.refusal or "" for s in scores.scores(folder) if s.seconds is None}
    assert set(refused) == {
        *("ring-4.all_to_all.json", "switch-8.all_gather.json", "somewhere.json"),
        "ring-4.all_gather.64KiB.json",
    }
    assert "whose links are not those of switch-8" in refused["switch-8.all_gather.json"]
    assert "NETWORK.COLLECTIVE" in refused["somewhere.json"]
    assert "all_to_all" in refused["ring-4.all_to_all.json"]


def test_a_schedule_that_is_not_complete_has_no_score(folder):
    path = folder / "ring-4.all_gather.256MiB.json"
    schedule = jc.io.load(path)
    columns = [column[:-1] for column in (schedule.step, schedule.edge, schedule.chunk)]
    cut = jc.Schedule.from_sends(
        schedule.topology, schedule.collective, *columns, edges=schedule.edges
    )
    jc.io.save(path, cut)
    (first, *_) = scores.scores(folder)
    assert first.seconds is None
    assert "rank" in (first.refusal or "")


def test_the_command(folder, capsys, monkeypatch):
    monkeypatch.setattr(scores.recording, "load", lambda name: {"ci": small()})
    assert command.main([str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["rows"]) == 3
    (folder / "x.xml").write_text("<algo/>")
    assert command.main([str(folder)]) == 1
    assert "1 files without a score" in capsys.readouterr().out
    for arguments, said in (
        ([str(folder / "none")], "there is no folder"),
        ([str(folder), "--size", "paper"], "not recorded at size=paper; recorded: ci"),
    ):
        assert command.main(arguments) == 2
        assert said in capsys.readouterr().err
    (empty := folder / "empty").mkdir()
    assert command.main([str(empty)]) == 2


def test_networks_are_written_for_others(tmp_path, capsys):
    assert command.main([str(tmp_path / "new"), "--networks"]) == 0
    assert "40 networks" in capsys.readouterr().out
    for name in NETWORKS:
        found = jc.io.load(tmp_path / "new" / f"{name}.json")
        assert found.links_digest == network(name).links_digest


def small() -> recording.Run:
    return recording.recorded("collbench", "ci", small_run("collbench").content)


def test_settings_that_are_refused():
    for setting, said in (
        ("networks=[ring-5]", "unknown networks 'ring-5'"),
        ("synthesizers=[blind]", "unknown synthesizers 'blind'"),
        ("chunks=[2,1]", "chunks must rise"),
        ("sizes=[]", "sizes must not be empty"),
    ):
        with pytest.raises(ConfigError, match=said):
            configure(["experiment=collbench", setting])
