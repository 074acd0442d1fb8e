"""Configurations: refusals and their messages, and the dataclasses they become."""

from __future__ import annotations

import csv
import dataclasses
import re
from pathlib import Path

import pytest

from experiments import __main__ as command
from experiments.config import (
    CONFIGS,
    EXPERIMENTS,
    SIZES,
    QuickstartConfig,
    TopologyConfig,
    build,
    configure,
    presets,
)
from experiments.study import ConfigError

QUICKSTART = "experiment=quickstart"


def test_the_quickstart_is_frozen_and_typed(tmp_path):
    name, config = configure([QUICKSTART, "train.steps=7", f"results={tmp_path}"])
    assert name == "quickstart"
    assert isinstance(config, QuickstartConfig)
    assert config.topology == TopologyConfig("torus", (2, 4))
    assert config.train.steps == 7
    assert config.results == tmp_path
    assert isinstance(config.hardware.bandwidth_gbps, float)
    assert config.synth.of("tacos") == (1, 2, 3)
    assert config.synth.of("another") == config.synth.chunks
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 1  # type: ignore[misc]


def test_every_experiment_has_a_configuration():
    assert {path.stem for path in (CONFIGS / "experiment").iterdir()} == set(EXPERIMENTS)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "which experiment.*known: quickstart"),
        (["experimnt=tacos-fig-10"], "no key 'experimnt'; did you mean experiment"),
        (["experiment=quick"], "no experiment 'quick'; known: quickstart"),  # words: ok
        (["experiment=tacos-fig-99"], "did you mean tacos-fig-1"),
        (["experiment=tacos-fig-10", "experimnt=x"], "key 'experimnt'; did you mean experiment"),
        (["experiment="], "which experiment"),
        ([QUICKSTART, "fast"], "key=value, got 'fast'"),
        ([QUICKSTART, "sed=1"], r"has no key 'sed'; did you mean seed\?"),
        ([QUICKSTART, "synth.nams=[ring]"], "key 'synth.nams'; did you mean synth.names"),
        ([QUICKSTART, "sinth.names=[ring]"], "key 'sinth.names'; did you mean synth"),
        ([QUICKSTART, "+extra=1"], "unknown extra; known: topology, hardware"),
        ([QUICKSTART, "topology=moebius"], "topology/moebius.*torus_2x4"),
        ([QUICKSTART, "sizes=[1"], "input"),
        ([QUICKSTART, "~seed"], "key=value, got '~seed'"),
        ([QUICKSTART, "~seed=0"], "seed is missing"),
        ([QUICKSTART, "seed=-1"], "seed must be at least 0, got -1"),
        ([QUICKSTART, "seed=null"], "seed must be an integer, got None"),
        ([QUICKSTART, "seed=true"], "seed must be an integer, got True"),
        ([QUICKSTART, "seed=${nowhere}"], "nowhere"),
        ([QUICKSTART, "elements=0"], "elements must be at least 1, got 0"),
        ([QUICKSTART, "link_model=exact"], "unknown link_model 'exact'; known: astra, tacos"),
        ([QUICKSTART, "sizes=[]"], "sizes must be bytes"),
        ([QUICKSTART, "sizes=[4,2]"], "sizes must rise"),
        ([QUICKSTART, "sizes=4"], "sizes must be a list, got 4"),
        ([QUICKSTART, "sizes=[1.5]"], "sizes must be an integer, got 1.5"),
        (
            [QUICKSTART, "topology.family=moebius"],
            "unknown topology.family 'moebius'; known: torus",
        ),
        ([QUICKSTART, "topology.sides=[0,4]"], "topology.sides must be integers of at least 1"),
        ([QUICKSTART, "topology.sides=[1,1]", "train.batch=1"], "at least two ranks"),
        ([QUICKSTART, "topology.family=ring"], "topology.sides of a ring is one number"),
        ([QUICKSTART, "hardware.platform=abacus"], "unknown hardware.platform 'abacus'"),
        ([QUICKSTART, "hardware.alpha_us=-1"], "hardware.alpha_us must be at least 0"),
        ([QUICKSTART, "hardware.bandwidth_gbps=0"], "hardware.bandwidth_gbps must be above 0"),
        ([QUICKSTART, "hardware.bandwidth_gbps=nan"], "hardware.bandwidth_gbps must be above 0"),
        ([QUICKSTART, "synth.names=[rong]"], "'rong', which is not a synthesizer; known: ring"),
        ([QUICKSTART, "synth.chunks=[0]"], "synth.chunks must be integers of at least 1"),
        ([QUICKSTART, "synth.chunks_of.ring=[]"], "synth.chunks_of.ring must be"),
        ([QUICKSTART, "synth.chunks_of=3"], "synth.chunks_of must be a mapping, got 3"),
        ([QUICKSTART, "train=3"], "train must be a mapping, got 3"),
        ([QUICKSTART, "train.batch=12"], "must be a multiple of the 8 ranks, got 12"),
        ([QUICKSTART, "train.steps=0"], "train.steps must be at least 1"),
        ([QUICKSTART, "train.hidden=[0]"], "train.hidden must be integers of at least 1"),
        ([QUICKSTART, "train.learning_rate=0"], "train.learning_rate must be above 0"),
        ([QUICKSTART, "train.loss_tolerance=inf"], "train.loss_tolerance must be at least 0"),
        (
            [QUICKSTART, "train.accuracy_wanted=x"],
            "train.accuracy_wanted must be a number, got 'x'",
        ),
    ],
)
def test_what_cannot_be_is_refused(arguments, expected):
    with pytest.raises(ConfigError, match=expected):
        configure(arguments)


def test_a_mapping_is_asked_for():
    with pytest.raises(ConfigError, match="the configuration must be a mapping, got 3"):
        build(TopologyConfig, 3)


def test_the_command_says_what_is_wrong_in_one_line(capsys):
    assert command.main(["experiment=quick"]) == 2  # words: ok
    captured = capsys.readouterr()
    assert captured.out == ""
    known = ", ".join(EXPERIMENTS)
    assert captured.err == f"error: there is no experiment 'quick'; known: {known}\n"  # words: ok


def test_the_command_line_comes_after_the_size():
    _, small = configure(["experiment=tensorstate-quickstart"])
    _, changed = configure(["experiment=tensorstate-quickstart", "layers=3"])
    assert small.layers != 3
    assert changed == dataclasses.replace(small, layers=3)
    _, large = configure(["layers=3", "size=paper", "experiment=tensorstate-quickstart"])
    assert large.layers == 3
    assert large.size == "paper"


def test_unknown_entries_are_refused_even_where_hydra_would_add_them():
    with pytest.raises(ConfigError, match="unknown lairs; known: "):
        configure(["experiment=tensorstate-quickstart", "+lairs=3"])


def test_an_experiment_of_one_size_has_no_other():
    with pytest.raises(ConfigError, match="unknown size 'paper'; quickstart has one size only"):
        configure([QUICKSTART, "size=paper"])


def test_every_study_has_its_presets():
    studies = {name for name in EXPERIMENTS if name != "quickstart"}
    assert {path.name for path in (CONFIGS / "preset").iterdir()} == studies
    assert all(presets(name) == sorted(SIZES) for name in studies)


def test_sweeps_write_a_folder_per_run_and_go_on_where_they_stopped(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    sweep = ["-m", "experiment=multitree-flits", "hydra.sweep.dir=sweep"]
    assert command.main([*sweep, "nbytes=65536,131072"]) == 0
    assert "has ended before" not in capsys.readouterr().out
    recorded = [Path(f"sweep/{run}/.hydra/overrides.yaml").read_text() for run in (0, 1)]
    assert ["65536" in recorded[0], "131072" in recorded[1]] == [True, True]
    table = Path("sweep/rows.csv").read_bytes()
    rows = list(csv.DictReader(table.decode().splitlines()))
    assert [row["nbytes"] for row in rows] == sorted((row["nbytes"] for row in rows), key=int)
    assert {row["nbytes"] for row in rows} == {"65536", "131072"}
    Path("sweep/1/ended.yaml").unlink()  # as if it had been stopped before the end
    # The flag may stand anywhere.
    assert command.main([*sweep[1:], "-m", "nbytes=65536,131072"]) == 0
    assert "sweep/0: has ended before\n" in (said := capsys.readouterr().out)
    assert "sweep/1: has ended before" not in said
    assert Path("sweep/rows.csv").read_bytes() == table
    assert (
        command.main([*sweep[1:], "nbytes=32768", "--multirun"]) == 0
    )  # another run of that number
    assert "has ended before" not in capsys.readouterr().out


def test_a_sweep_names_what_it_cannot_run(capsys):
    assert command.main(["-m", "experiment=tacos-fig-10", "seed=-1,-2"]) == 2
    assert "seed must be at least 0, got -1" in capsys.readouterr().err


def test_help_lists_the_groups(capsys):
    assert command.main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^experiment: .*\bforestcoll-fig-4-10\b", printed, re.MULTILINE)
    assert "size: ci, paper" in printed


@pytest.mark.parametrize(
    ("platform", "before", "after"),
    [
        ("cpu", None, "--xla_force_host_platform_device_count=8"),
        ("cpu", "--other", "--other --xla_force_host_platform_device_count=8"),
        (
            "cpu",
            "--xla_force_host_platform_device_count=9",
            "--xla_force_host_platform_device_count=9",
        ),
        ("gpu", None, None),
    ],
)
def test_devices_are_prepared_in_the_environment(platform, before, after, monkeypatch):
    environment = {} if before is None else {"XLA_FLAGS": before}
    monkeypatch.setattr(command.os, "environ", environment)
    command.prepare_devices(platform, 8)
    assert environment.get("XLA_FLAGS") == after
    assert environment["JAX_PLATFORMS"] == platform
