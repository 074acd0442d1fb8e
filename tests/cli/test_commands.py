"""Every command does what it says, prints one JSON document, and refuses in one line."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import jaxcoll as jc
from jaxcoll.cli import COMMANDS, application
from jaxcoll.cli.quantities import time_text
from tests.cli.calls import called, refused
from tests.tune.nccl.test_nccl_tests import OLD

TORUS = jc.topologies.torus(2, 2)


@pytest.fixture
def schedule(tmp_path):
    path = tmp_path / "schedule.json"
    jc.io.save(path, jc.synthesize(TORUS, "all_reduce", "bucket"))
    return path


def as_json(capsys, *arguments):
    code, out, err = called(capsys, *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_fits_a_screen(capsys, name):
    code, out, err = called(capsys, name, "--help")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) <= 32
    assert all(len(line) <= 100 for line in out.splitlines())
    assert f"jaxcoll {name}" in out


def test_the_list_of_commands_fits_a_screen_and_without_one_it_is_printed(capsys):
    code, out, _ = called(capsys)
    assert code == 0
    assert len(out.splitlines()) <= 30
    assert called(capsys, "--help")[1] == out
    assert set(application.list_commands(None)) == set(COMMANDS)  # type: ignore[arg-type]


def test_version(capsys):
    assert called(capsys, "--version")[1] == f"jaxcoll {jc.__version__}\n"


def test_synth_writes_what_it_says(capsys, tmp_path):
    path = tmp_path / "schedule.json"
    made = as_json(capsys, "synth", "torus:2x2", "all_gather", "--size", "1MiB", "-o", path)
    read = jc.io.load(path)
    assert isinstance(read, jc.Schedule)
    assert (made["collective"], made["ranks"]) == ("all_gather", 4)
    assert made["sends"] == len(read.chunk)
    assert made["seconds"] == jc.simulate(read, 2**20).time
    assert made["bound_seconds"] <= made["seconds"]
    code, out, _ = called(capsys, "synth", "torus:2x2", "-s", "bucket", "--size", "1MiB")
    assert code == 0
    assert "all_reduce of 4 ranks by bucket" in out


def test_synth_to_stdout_is_the_file_alone(capsys):
    code, out, err = called(capsys, "synth", "ring:4", "-s", "ring", "-o", "-")
    assert code == 0
    assert isinstance(jc.io.loads(out), jc.Schedule)
    assert "4 ranks by ring" in err


def test_a_schedule_by_orbits_goes_through_the_commands(capsys, tmp_path):
    path, whole = tmp_path / "orbit.json", tmp_path / "all.json"
    given = ("synth", "torus:4x4", "all_to_all", "--orbit", "--size", "1MiB")
    made = as_json(capsys, *given, "-o", path)
    read = jc.io.load(path)
    assert isinstance(read, jc.orbits.OrbitSchedule)
    assert (made["synthesizer"], made["sends"]) == ("orbits", read.num_sends)
    assert as_json(capsys, "verify", path)["proved"] is True
    (row,) = as_json(capsys, "simulate", path, "--size", "1MiB")["rows"]
    assert row["seconds"] == made["seconds"]
    proof = as_json(capsys, "prove", path, "--as", "all_to_all", "--ranks", 16)
    assert (proof["messages"], proof["format"]) == (read.num_sends, "jaxcoll.orbit-schedule/1")
    assert called(capsys, "convert", path, whole)[0] == 0
    assert jc.io.load(whole) == read.expand()
    assert as_json(capsys, "prove", whole)["proved"] is True
    (row,) = as_json(capsys, "simulate", whole, "--size", "1MiB")["rows"]
    assert row["seconds"] == made["seconds"]
    # Where a run needs every send, they are listed.
    trace = tmp_path / "trace.json"
    assert called(capsys, "simulate", path, "--trace", trace)[0] == 0
    code, out, _ = called(capsys, "show", path)
    assert (code, "rank 0's shard" in out) == (0, True)
    assert called(capsys, "show", path, "-o", tmp_path / "page.html")[0] == 0


@pytest.mark.slow
def test_the_default_of_thousands_goes_through_the_commands(capsys, tmp_path):
    path = tmp_path / "s.json"
    made = as_json(capsys, "synth", "torus:64x64", "all_to_all", "-o", path)
    assert (made["synthesizer"], made["sends"]) == ("auto", 2**29)
    assert made["percent_of_bound"] > 99
    assert as_json(capsys, "verify", path)["proved"] is True
    assert as_json(capsys, "prove", path)["messages"] == 2**29
    (row,) = as_json(capsys, "simulate", path, "--size", "25MiB")["rows"]
    assert row["seconds"] == made["seconds"]
    code, out, _ = called(capsys, "show", path)
    assert (code, "rank 0's shard" in out) == (0, True)
    for wanted in (
        ("convert", path, tmp_path / "all.json"),
        ("simulate", path, "--execution", "gpu"),
    ):
        code, _, err = called(capsys, *wanted)
        assert (code, "536870912 sends in all" in err) == (2, True)
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("-s", "ring"), "leave the other options out"),
        (("--execution", "tpu"), "leave the other options out"),
        (("--no-helpers",), "leave the other options out"),
        (("--for-runtime", "msccl"), "leave --for-runtime out"),
        (("-o", "s.xml"), "jaxcoll convert"),
        (("--without", "0-1"), "no translations"),
    ],
)
def test_other_options_beside_orbits_are_refused(capsys, tmp_path, monkeypatch, more, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = called(capsys, "synth", "torus:4x4", "all_gather", "--orbit", *more)
    assert (code, message in err) == (2, True)
    assert not list(tmp_path.iterdir())


def test_verify(capsys, schedule):
    assert as_json(capsys, "verify", schedule) == {
        "proved": True, "collective": "all_reduce", "ranks": 4,
    }  # fmt: skip
    assert called(capsys, "verify", schedule)[1].startswith("proved: every rank of 4")


def test_verify_fails_with_1_and_names_the_place(capsys, schedule):
    text = schedule.read_text().splitlines()
    made = jc.io.load(schedule)
    assert isinstance(made, jc.Schedule)
    end = int(made.step_ptr[-2])
    jc.io.save(
        schedule,
        jc.Schedule(
            made.topology, made.collective, made.edges, made.step_ptr[:-1], made.edge[:end],
            made.chunk[:end], made.reduce[:end],
        ),
    )  # fmt: skip
    assert text != schedule.read_text().splitlines()
    code, out, err = called(capsys, "verify", schedule)
    assert (code, err) == (1, "")
    assert out.startswith("not proved: ")
    assert out.count("\n") == 1
    code, out, _ = called(capsys, "verify", schedule, "--json")
    assert code == 1
    found = json.loads(out)
    assert found["proved"] is False
    assert isinstance(found["rank"], int)


def test_simulate(capsys, schedule):
    rows = as_json(capsys, "simulate", schedule, "--size", "1KiB,1MiB")["rows"]
    read = jc.io.load(schedule)
    assert isinstance(read, jc.Schedule)
    assert [row["nbytes"] for row in rows] == [1024, 2**20]
    assert rows[1]["seconds"] == jc.simulate(read, 2**20).time
    slower = as_json(capsys, "simulate", schedule, "--size", "1KiB", "--execution", "gpu")["rows"]
    assert slower[0]["seconds"] > rows[0]["seconds"]
    assert "of bound" in called(capsys, "simulate", schedule)[1]


LAW = """from jaxcoll.simulation import LinkModel

def law(link, nbytes, serial, alpha, ready, start):
    return 2 * serial, 2 * serial + alpha

MODEL = LinkModel("halves", law=law)
"""


def test_link_models_by_name_and_of_ones_own(capsys, monkeypatch, tmp_path, schedule):
    (tmp_path / "my_links.py").write_text(LAW)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    found = {
        name: as_json(capsys, "simulate", schedule, "--size", "1GB", "--model", name)
        for name in ("astra", "tacos", "my_links:MODEL")
    }
    assert [each["model"] for each in found.values()] == ["astra", "tacos", "halves"]
    astra, tacos, halves = (each["rows"][0] for each in found.values())
    assert astra["seconds"] <= tacos["seconds"] < halves["seconds"]
    assert halves["seconds"] == pytest.approx(2 * astra["seconds"], rel=1e-3)
    assert astra["bound_seconds"] == halves["bound_seconds"]
    options = ("torus:2x2", "--size", "1GB", "--only", "ring")
    (row,) = as_json(capsys, "compare", *options, "--model", "my_links:MODEL")["rows"]
    (plain,) = as_json(capsys, "compare", *options)["rows"]
    assert row["seconds"] == pytest.approx(2 * plain["seconds"], rel=1e-3)
    assert row["percent_of_bound"] == pytest.approx(plain["percent_of_bound"] / 2, rel=1e-3)
    assert "MODULE:NAME" in refused(capsys, "simulate", schedule, "--model", "my_links:law")
    assert "it has" in refused(capsys, "simulate", schedule, "--model", "my_links:other")


def test_convert_there_and_back(capsys, schedule, tmp_path):
    xml, back = tmp_path / "program.xml", tmp_path / "back.json"
    assert called(capsys, "convert", schedule, xml)[0] == 0
    assert "--network torus:4x4" in refused(capsys, "verify", xml)
    assert called(capsys, "verify", xml, "--network", "torus:2x2")[0] == 0
    assert called(capsys, "convert", xml, back, "--network", "torus:2x2")[0] == 0
    first, again = jc.io.load(schedule), jc.io.load(back)
    assert isinstance(first, jc.Schedule)
    assert isinstance(again, jc.Schedule)
    assert jc.simulate(again, 2**20).time == jc.simulate(first, 2**20).time
    network = tmp_path / "network.json"
    made = as_json(capsys, "convert", "torus:2x2", network)
    assert made["kind"] == "network"
    assert jc.io.load(network) == TORUS
    assert called(capsys, "bound", network)[0] == 0
    assert called(capsys, "convert", "ring:4", "-")[1] == jc.io.dumps(jc.topologies.ring(4))
    tables = tmp_path / "tables.txt"
    made = tmp_path / "multitree.json"
    assert called(capsys, "synth", "torus:2x2", "-s", "multitree", "-o", made)[0] == 0
    assert called(capsys, "convert", made, tables)[0] == 0
    assert jc.io.multitree.load(tables)


def test_schedules_on_disk(capsys, tmp_path):
    jc.synthesize_compact(TORUS, tmp_path / "compact")
    network = ["--network", "torus:2x2"]
    assert as_json(capsys, "verify", tmp_path / "compact", *network)["collective"] == "all_gather"
    assert called(capsys, "show", tmp_path / "compact", *network)[0] == 0
    assert called(capsys, "simulate", tmp_path / "compact", *network)[0] == 0
    back = tmp_path / "back.json"
    assert called(capsys, "convert", tmp_path / "compact", back, *network)[0] == 0
    assert called(capsys, "verify", back)[0] == 0


def test_compare(capsys):
    found = as_json(capsys, "compare", "ring:4", "--size", "1MiB", "--only", "ring,c_cube,auto")
    ring, refusal, auto = found["rows"]
    schedule = jc.synthesize(jc.topologies.ring(4), "all_reduce", "ring", nbytes=2**20)
    assert ring["seconds"] == jc.simulate(schedule, 2**20).time
    assert "DGX-1" in refusal["refused"]
    assert auto["percent_of_bound"] >= ring["percent_of_bound"]
    _, out, _ = called(capsys, "compare", "ring:4", "--size", "1MiB", "--only", "ring,direct")
    assert [line.split()[0] for line in out.splitlines()] == [
        "times:", "synthesizer", "(bound)", "ring", "direct", "fastest",
    ]  # fmt: skip
    assert "each link works by itself" in out.splitlines()[0]


def test_compare_on_a_machine_has_a_row_of_jax_lax(capsys):
    network = ("torus:2x4", "--bandwidth", "50Mbit/s", "--size", "4MiB")
    options = ("--execution", "processes")
    found = as_json(capsys, "compare", *network, *options, "--only", "jax.lax,ring")
    assert (found["order"], found["half_duplex"]) == ("rounds", True)
    lax, ring = found["rows"]
    assert lax["seconds"] > 1.9 * ring["seconds"]  # around the ranks in order, each pair both ways
    assert 99 < ring["percent_of_bound"] <= 100
    assert "add --execution" in refused(capsys, "compare", *network, "--only", "jax.lax")
    rooted = ("compare", "ring:4", "broadcast", "--only", "jax.lax", *options)
    assert "it has no broadcast" in refused(capsys, *rooted)


def test_explain_says_what_runs_and_what_pays(capsys):
    """The candidates of ``explain_choice``, beside the schedule of links and measured times."""
    given = ("h100-host", "--size", "64MiB", "--backend", "gpu")
    (row,) = as_json(capsys, "explain", *given)["rows"]
    host = jc.measured.MACHINES["h100-host"].topology(None)
    told = jc.explain_choice("psum", nbytes=2**26, topology=host, execution="gpu")
    assert row["runs"] == told.chosen.name == "jax.lax"
    assert row["lax_seconds"] == told.chosen.seconds
    assert row["best_seconds"] == min(c.seconds for c in told.candidates if not c.is_native)
    assert row["bound_seconds"] <= row["exported_seconds"] < 1.05 * row["bound_seconds"]
    assert row["measured_seconds"] == jc.expect(host, "all_reduce", [2**26]).sizes[0].seconds
    code, out, _ = called(capsys, "explain", *given, "--all")
    assert code == 0
    assert "inside JAX: the default is jax.lax here; the best schedule is predicted" in out
    assert str(told) in out
    able = jc.bound(host, "all_reduce", 2**26).time
    assert row["in_network_bound_seconds"] == able < row["bound_seconds"]
    assert f"may be faster: at best {time_text(able)} at 64MiB" in out
    assert "NVLSTree" not in called(capsys, "explain", "dgx-a100:1", "--size", "64MiB")[1]
    wires = ("torus:2x4", "--bandwidth", "12Mbit/s", "--size", "1MiB", "--backend", "links")
    code, out, _ = called(capsys, "explain", *wires)
    assert code == 0
    assert re.search(r"inside JAX, 1MiB: .* predicted to take .* of the time of jax.lax", out)
    slice_ = as_json(capsys, "explain", "v5e:2x2", "all_gather", "--size", "1MiB", "--all")
    assert (slice_["backend"], slice_["network"][:3]) == ("tpu", "TPU")
    assert {"jax.lax", slice_["rows"][0]["best"]} <= {
        each["candidate"] for each in slice_["rows"][0]["candidates"]
    }


def test_explain_has_wires_and_unequal_slices(capsys, tmp_path):
    """As ``explain_choice``, beside what floats of 32 bits and full pairs would take."""
    hosts = ("dgx-h100:2", "--size", "64MiB", "--backend", "gpu")
    network = jc.measured.MACHINES["h100-host"].topology(None)
    (row,) = as_json(capsys, "explain", "h100-host", *hosts[1:], "--wire", "float8_e4m3fn")["rows"]
    given = {"nbytes": 2**26, "topology": network, "execution": "gpu"}
    told = jc.explain_choice("psum", wire_dtype="float8_e4m3fn", **given)
    assert told.then is not None
    assert row["runs"] == [told.chosen.name, told.then.chosen.name]
    assert row["seconds"] == told.seconds
    assert row["plain_seconds"] == jc.explain_choice("psum", **given).seconds
    rows = np.random.default_rng(0).integers(0, 9, (16, 16))
    rows[2, 5] = 200
    file = tmp_path / "tokens.txt"
    np.savetxt(file, rows, "%d")
    ragged = ("explain", hosts[0], "all_to_all", *hosts[1:], "--largest", str(file))
    (row,) = as_json(capsys, *ragged)["rows"]
    assert row["seconds"] < row["plain_seconds"]
    code, out, _ = called(capsys, *ragged)
    assert code == 0
    assert "ragged_all_to_all of up to 67,108,864 B" in out
    assert "of the time of pairs all as full as the fullest" in out
    assert "--largest only applies to all_to_all" in refused(
        capsys, "explain", *hosts, "--largest", "x"
    )
    file.write_text("0 1\n2 x\n")
    assert "must have a line for each rank" in refused(capsys, *ragged)


def test_compare_names_those_that_are_not_defined_in_one_line(capsys, monkeypatch):
    tried = {"ring", "c_cube", "hdrm"}  # all would take long
    monkeypatch.setattr("jaxcoll.comparison.SEARCHES", set(jc.synth.SYNTHESIZERS) - tried)
    _, out, _ = called(capsys, "compare", "ring:4", "--size", "1MiB", "--execution", "gpu")
    assert [line.split()[0] for line in out.splitlines()] == [
        "times:", "synthesizer", "(bound)", "jax.lax", "ring", "auto", "not", "fastest",
    ]  # fmt: skip
    assert out.splitlines()[-2].endswith("says why): c_cube, hdrm")
    _, out, _ = called(capsys, "compare", "ring:4", "--size", "1MiB", "--only", "c_cube,ring")
    assert re.search("^c_cube .*dgx1", out, re.MULTILINE)
    assert "not defined here" not in out


def test_times_say_their_order(capsys, tmp_path):
    schedule = tmp_path / "s.json"
    network = ("torus:2x2", "--size", "1MiB")
    options = ("--execution", "processes")
    _, out, _ = called(capsys, "synth", *network, *options, "-s", "ring", "-o", schedule)
    said = "times: cpu in order 'rounds': a rank's permutes follow one another"
    assert said in out
    simulated = ("simulate", schedule, "--size", "1MiB")
    assert said in called(capsys, *simulated, *options)[1]
    assert "each link works by itself" in called(capsys, *simulated)[1]
    found = as_json(capsys, *simulated, *options)
    assert found["order"] == "rounds"
    assert found["rows"][0]["percent_of_bound"] <= 100
    assert said in called(capsys, "bound", *network, *options)[1]
    assert "times:" not in called(capsys, "bound", *network)[1]
    bounded = as_json(capsys, "bound", *network, *options)
    assert (bounded["order"], bounded["bounds"][0]["name"]) == ("rounds", "ports")


@pytest.mark.slow
def test_compare_tries_all_but_the_exact_searches(capsys):
    for kind in ("all_reduce", "all_to_all", "broadcast"):
        rows = as_json(capsys, "compare", "torus:2x2", kind, "--size", "64KiB")["rows"]
        names = set(jc.synth.SYNTHESIZERS) - {"sccl", "step_milp"}
        assert {row["synthesizer"] for row in rows} == names
        assert sum("seconds" in row for row in rows) > 3


def test_bound(capsys):
    found = as_json(capsys, "bound", "dgx-h100:2", "--size", "1GB", "--all")["bounds"]
    least = jc.bound(jc.topologies.dgx_h100(2), "all_reduce", 10**9)
    assert found[0] == {"seconds": least.time, "name": least.name, "reason": least.reason}
    assert len(found) > 2
    assert called(capsys, "bound", "ring:4", "--exact", "--size", "1MB")[0] == 0


def test_find(capsys, tmp_path):
    points = as_json(capsys, "find", 8, 2, "--no-rates")["points"]
    assert [point["steps"] for point in points] == sorted(point["steps"] for point in points)
    path = tmp_path / "found.json"
    code, out, _ = called(capsys, "find", 8, 2, "--no-rates", "--take", 1, "-o", path)
    assert code == 0
    assert "bound" in out
    network = jc.io.load(path)
    assert isinstance(network, jc.Topology)
    assert network.num_ranks == 8


def test_show(capsys, schedule, tmp_path):
    facts = as_json(capsys, "show", "dgx-h100:2")
    assert (facts["ranks"], facts["switches"]) == (16, 3)
    assert sum(each["links"] for each in facts["speeds"]) == facts["links"]
    assert "grid 2 x 4 (ring)" in called(capsys, "show", "torus:2x4")[1]
    assert "step   0: " in called(capsys, "show", schedule)[1]
    assert "torus:AxB.." in called(capsys, "show", "--names")[1]
    for what in ("torus:2x2", schedule):
        picture = tmp_path / "picture.png"
        assert called(capsys, "show", what, "-o", picture)[0] == 0
        assert picture.read_bytes().startswith(b"\x89PNG")
        picture.unlink()


def test_tables_of_tuning(capsys, tmp_path):
    path, merged = tmp_path / "table.json", tmp_path / "merged.json"
    jc.tune.Table().save(path)
    assert called(capsys, "tune", "diff", path, path)[:2] == (0, "")
    assert as_json(capsys, "tune", "merge", merged, path, path)["tables"] == [str(path)] * 2
    assert called(capsys, "tune", "show", merged)[0] == 0


def test_completion(capsys):
    for shell in ("bash", "zsh", "fish"):
        code, out, _ = called(capsys, "completion", shell)
        assert code == 0
        assert "_JAXCOLL_COMPLETE" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sinth"], "no command is called 'sinth'; did you mean 'synth'?"),
        (["synth"], "say which network: torus:4x4"),
        (["synth", "torus:4x4", "all_reduced"], "all_reduce"),
        (["synth", "torus:4x4", "--size", "big"], "type 256KiB"),
        (["synth", "torus:4x4", "--size", "-1"], "type 256KiB"),
        (["synth", "torus:4x4", "--alpha", "soon"], "type 0.5us"),
        (["synth", "torus:4x4", "--bandwidth", "0"], "above 0"),
        (["synth", "torus:4x4", "-s", "tacoz"], "did you mean tacos?"),
        (["synth", "torus:2x2", "-s", "c_cube"], "DGX-1"),
        (["synth", "torus:2x2", "-o", "schedule"], "end it with .json"),
        (["synth", "torus:2x2", "-o", "/no/such/folder/s.json"], "type: mkdir -p"),
        (["synth", "torus:2x2", "broadcast", "--root", "99"], "root"),
        (["synth", "torus:2x2", "--chunks", "0"], "--chunks"),
        (["synth", "/dev/null/x.json"], "/dev/null/x.json"),
        (["verify", "/nowhere.json"], "No such file"),
        (["verify", "/dev/null"], "device"),
        (["verify", "/"], "/ is a folder; give the path of a file"),
        (["simulate", "/nowhere.json", "--size", "1MiB"], "No such file"),
        (["simulate", "SCHEDULE", "--trace", "x.foo"], "ends with .json or .json.gz"),
        (["simulate", "/nowhere.json", "--model", "exact"], "must be one of astra, tacos"),
        (["compare", "torus:2x2", "--model", "no_module:x"], "importing no_module failed"),
        (["bound"], "or --from FILE"),
        (["bound", "--from", "/nowhere.txt"], "No such file"),
        (["bound", "--from", "/dev/null"], "device"),
        (["bound", "torus:4x4", "--gpu", "h100"], "only apply to a FILE, and 'torus:4x4' is none"),
        (["bound", "blind", "--from", "/nowhere.txt"], "no collective is called 'blind'"),
        (["compare", "torus:2x2", "--workers", "0"], "--workers"),
        (["compare", "torus:2x2", "--only", "ring,blind"], "no synthesizer is called 'blind'"),
        (["compare", "torus:2x2", "--size", "1KiB,"], "type 256KiB"),
        (["compare", "torus:2x2", "--only", "jax.lax"], "add --execution MACHINE"),
        (["compare", "torus:2x2", "broadcast", "--root", "9"], "root"),
        (["compare", "torus:2x2", "--root", "1"], "has no root"),
        (["bound", "torus:2x2", "--size", "1e99999"], "is not a size"),
        (["find", "1", "4"], "RANKS"),
        (["find", "8", "2", "--take", "1"], "belong together"),
        (["find", "40000", "4"], "32768"),
        (["bound", "ring:4", "--size", "1G"], "did you mean 1GiB or 1GB?"),
        (["bound", "ring:4", "--alpha", "5u"], "did you mean 5us?"),
        (["bound", "ring:4", "--bandwidth", "16G"], "did you mean 16GB/s or 16Gb/s?"),
        (["bound", "ring:4", "--nbytes", "1"], "did you mean --size?"),
        (["convert", "ring:4", "x.gexf", "--to", "gexf"], "did you mean --format?"),
        (["simulate", "torus:4x4"], "make one: jaxcoll synth torus:4x4 -o schedule.json"),
        (["verify", "dgx-h100:2"], "make one: jaxcoll synth dgx-h100:2"),
        (["prove", "v5e:4x4"], "make one: jaxcoll synth v5e:4x4"),
        (["show", "SCHEDULE", "--network", "ring:4"], "leave --network out"),
        (["explain", "ring:4", "broadcast"], "jax.lax has no broadcast to compare with; explain"),
        (["explain", "ring:1"], "has one rank"),
        (["compare", "--from", "/nowhere.txt", "--gpu", "h100"], "No such file"),
        (["show"], "say what to show"),
        (["show", "ring:4", "--names"], "leave ring:4 out"),
        (["show", "ring:4", "--size", "1MB"], "add -o page.html"),
        (["show", "ring:4", "--execution", "tpu", "-o", "a.svg"], "add -o page.html"),
        (["show", "ring:4", "--slow", "0-1=0"], "above 0, got 0"),
        (["show", "torus:2x2", "-o", "picture.jpeg"], "end it with .png"),
        (["convert", "torus:2x2", "out.xml"], "holds schedules"),
        (["tune", "run"], "--output"),
        (["tune", "run", "-o", "t.json", "--collectives", "sum"], "is not one of"),
        (["tune", "show", "/nowhere.json"], "No such file"),
        (["completion", "tcsh"], "bash"),
        (["doctor", "--network", "toru:4"], "did you mean"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_that_says_what_to_type(
    capsys, monkeypatch, tmp_path, arguments, said
):
    monkeypatch.chdir(tmp_path)
    schedule = tmp_path / "schedule.json"
    jc.io.save(schedule, jc.synthesize(jc.topologies.ring(3), "all_gather", "ring", chunks=1))
    arguments = [schedule if each == "SCHEDULE" else each for each in arguments]
    assert said in refused(capsys, *arguments)
    assert list(tmp_path.iterdir()) == [schedule]


@pytest.mark.parametrize(
    "word", ["allreduce", "all-reduce", "AllReduce", "ALL_REDUCE", "psum", "all_reduce_perf"]
)
def test_collectives_go_by_the_words_of_others(capsys, word):
    assert called(capsys, "bound", "ring:4", word) == called(capsys, "bound", "ring:4")


def test_refusals_of_the_library_name_options(capsys, tmp_path):
    """Python's "give collective=" is "give --collective" on the command line."""
    log = tmp_path / "log.txt"
    log.write_text(OLD)
    said = refused(capsys, "calibrate", log)
    assert "--collective" in said
    assert "collective=" not in said
    csv = tmp_path / "log.csv"
    assert "--collective" in refused(capsys, "convert", log, csv)
    assert called(capsys, "convert", log, csv, "--collective", "AllReduce")[0] == 0
    assert {row.collective for row in jc.io.load(csv).rows} == {"all_reduce"}
    short = refused(capsys, "synth", "torus:2x2", "--deadline", "0.00001")
    assert "give --deadline of " in short
    wide = called(capsys, "compare", "torus:2x2", "--only", "ring", "--deadline", "0.00001")
    assert "s or more" in wide[1]


@pytest.mark.parametrize("content", ["", "{", "[]", "\0\0", "<algo>", '{"format": "x"}', "é" * 9])
@pytest.mark.parametrize("command", ["verify", "simulate", "show", "bound"])
def test_files_that_hold_something_else(capsys, tmp_path, command, content):
    path = tmp_path / "file.json"
    path.write_text(content)
    assert str(path) in refused(capsys, command, path) or content == "<algo>"


def test_no_remedy_is_named_that_does_not_help(capsys, tmp_path):
    said = refused(capsys, "synth", "ring:4", "broadcast", "-o", tmp_path / "b.xml")
    assert "not for Collective(broadcast" in said
    assert "for-runtime" not in said
