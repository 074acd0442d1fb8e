"""Messages name what was given and options of the command, whatever stands in a file."""

from __future__ import annotations

import json

import pytest

import jaxcoll as jc
from jaxcoll.cli import application, schedules
from jaxcoll.cli.words import in_options
from jaxcoll.simulation import execution_costs
from tests.cli.calls import arguments_of_python, called, refused

SYNTH, CONVERT, COMPARE = (application.get_command(None, name) for name in  # type: ignore[arg-type]
                           ("synth", "convert", "compare"))  # fmt: skip


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("give chunks=4 or more", "give --chunks 4 or more"),
        ("which helpers=False leaves out", "which --no-helpers leaves out"),
        ("say synthesizer='tacos', say", "say --synthesizer tacos, say"),
        ("give gpu=, as h100:8", "give --gpu, as h100:8"),
        ("gpu must be one of a, b", "--gpu must be one of a, b"),
        ("x.txt: hosts must be at least 1", "x.txt: --hosts must be at least 1"),
        ("state network=", "state the second of --bandwidth"),
        ("phases='separate' has no option", "phases separate (in Python) has no option"),
        # What is quoted, or looks like an object, is nobody's advice.
        ("line 3: got 'chunks=4'", "line 3: got 'chunks=4'"),
        ("got Thing(root=1, of=(2, 3))", "got Thing(root=1, of=(2, 3))"),
        ("got Thing(root=1, of=(2, 3...", "got Thing(root=1, of=(2, 3..."),
        ("NCCL's chunks=4 isn't ours", "NCCL's --chunks 4 isn't ours"),
        ("SwitchName=leaf1 Nodes=gpu[01-16]", "SwitchName=leaf1 Nodes=gpu[01-16]"),
    ],
)
def test_arguments_are_said_as_options(message, said):
    assert in_options(message, SYNTH) == said


def test_an_argument_that_the_command_does_not_take():
    assert in_options("give chunks=1", CONVERT) == "give --chunks 1 of jaxcoll synth"
    assert in_options("give chunks=1", None) == "give --chunks 1 of jaxcoll synth"
    assert in_options("give root=1", COMPARE) == "give --root 1"


def test_the_property_sees_an_argument_of_python():
    assert arguments_of_python("give groups=: 'root=1' type data=2,model=4") == ["groups=:"]


def test_who_is_not_helped_is_said_by_the_option(capsys):
    apart = ("torus:4x4", "--groups", "0,5", "--no-helpers")
    assert "outside it, which --no-helpers leaves out" in refused(capsys, "synth", *apart)


def test_refusals_in_a_table_are_said_by_options(capsys):
    _, out, _ = called(capsys, "compare", "dgx-h100:2", "--only", "bucket", "--size", "1KiB")
    assert "or pass grid (in Python) to Topology" in out
    assert arguments_of_python(out) == []


@pytest.mark.parametrize(
    ("time", "said"),
    [("5m", "did you mean 5ms or 5min?"), ("0", "above 0"), ("soon", "type 10s, 2min")],
)
def test_a_deadline_has_a_unit(capsys, time, said):
    assert said in refused(capsys, "synth", "ring:4", "--deadline", time)
    for fine in ("10s", "10", "500ms", "2min", "1h"):
        assert called(capsys, "synth", "ring:3", "-s", "ring", "--deadline", fine)[0] == 0


# ---------------------------------------------------------------------- descriptions

SMI = "\tGPU0\tGPU1\tNIC0\nGPU0\t X \tNV18\tPIX\nGPU1\tNV18\t X \tSYS\n"
TREE = "SwitchName=leaf1 Nodes=gpu[01-02]\nSwitchName=leaf2 Nodes=gpu[03-04]\n" \
       "SwitchName=spine Switches=leaf[1-2]\n"  # fmt: skip


@pytest.fixture
def smi(tmp_path):
    path = tmp_path / "smi.txt"
    path.write_text(SMI)
    return path


@pytest.fixture
def tree(tmp_path):
    path = tmp_path / "topology.conf"
    path.write_text(TREE)
    return path


def test_show_and_expect_complete_a_description_as_others_do(capsys, smi, tree):
    of_smi, of_tree = ("--gpu", "h100", "--hosts", 2), ("--gpu", "h100:8", "--nodes", "gpu[01-02]")
    shown = json.loads(called(capsys, "show", smi, *of_smi, "--json")[1])
    assert (shown["ranks"], shown["switches"]) == (4, 5)
    assert json.loads(called(capsys, "show", tree, *of_tree, "--json")[1])["ranks"] == 16
    expected = json.loads(called(capsys, "expect", tree, *of_tree, "--json")[1])
    # Two hosts of eight H100 at 400 Gbit/s a GPU: a machine that others have measured.
    assert (expected["ranks"], expected["machine"]) == (16, "h100-2-hosts")
    for command in ("show", "expect", "bound"):
        said = refused(capsys, command, "ring:4", "--gpu", "h100")
        assert (
            "--gpu, --hosts, --nodes and --speeds only apply to a FILE, and 'ring:4' is none"
            in said
        )


@pytest.mark.parametrize(
    ("gpu", "said"),
    [("h100:100000", "a host has 1 to 256 GPUs, got 'h100:100000'"),
     ("h100:0", "1 to 256"), ("banana:8", "no GPU is called 'banana'"),
     ("h10:8", "did you mean h100?"), ("h100:x", "--gpu must be a kind of GPU and how many")],
)  # fmt: skip
def test_gpus_that_are_none(capsys, tree, gpu, said):
    assert said in refused(capsys, "bound", tree, "--gpu", gpu)


def test_a_table_says_how_many_gpus_a_host_has(capsys, smi):
    assert "type --gpu h100" in refused(capsys, "show", smi, "--gpu", "h100:8")
    assert "--gpu must be one of v100" in refused(capsys, "show", smi, "--gpu", "banana")


def test_convert_states_links(capsys, smi, tmp_path):
    path = tmp_path / "n.json"
    assert called(capsys, "convert", "ring:4", path, "--bandwidth", "10GB/s")[0] == 0
    assert jc.io.load(path) == jc.topologies.ring(4, bandwidth=10e9)
    options = ("--gpu", "h100", "--hosts", 2, "--bandwidth", "20GB/s,12.5GB/s")
    assert called(capsys, "convert", smi, path, *options)[0] == 0
    assert set(jc.io.load(path).bandwidth.tolist()) == {360e9, 63e9, 12.5e9}
    again = refused(capsys, "convert", path, tmp_path / "o.json", "--alpha", "1us")
    assert "a file states the speeds of its links" in again


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_text_of_windows_is_read(capsys, smi, encoding):
    plain = called(capsys, "show", smi, "--gpu", "h100")
    smi.write_bytes(SMI.encode(encoding))
    assert called(capsys, "show", smi, "--gpu", "h100") == plain


# ---------------------------------------------------------------------- hostile files

CIRCLE = "SwitchName=a Switches=b\nSwitchName=b Switches=a\n"
CONTENTS: dict[str, str | bytes] = {
    "empty": "", "blank": " \n\n", "object": "{}", "array": "[]", "null": "null", "one": "1",
    "text": '"a"', "other": '{"a": 1}', "network": '{"format": "jaxcoll.topology/1"}',
    "schedule": '{"format": "jaxcoll.schedule/1"}', "gpus": '{"gpus": []}', "three": '{"gpus": 3}',
    "tag": "<a>", "system": "<system/>", "algo": "<algo/>", "Algo": "<Algo/>",
    "lstopo": "<topology/>", "graphml": "<graphml/>", "html": "<!doctype html><html></html>",
    "entity": '<!DOCTYPE x [<!ENTITY a "b">]><system>&a;</system>', "flat": "flat: true\n",
    "flats": "- topology: t\n  cluster_default: true\n  flat: true\n", "circle": CIRCLE,
    "circles": "SwitchName=l Nodes=n1\nSwitchName=t Switches=l,s\nSwitchName=s Switches=t\n",
    "astra": "topology: [Ring]", "smi": "GPU0", "fabric": 'Switch 4 "S-1"', "slurm": "SwitchName=a",
    "yaml": "- topology: x", "binary": bytes(range(256)), "zeros": bytes(99), "deep": "[" * 10**5,
    "objects": '{"a":' * 5000, "nan": '{"format": "jaxcoll.topology/1", "num_ranks": NaN}',
    "digits": '{"format": "jaxcoll.topology/1", "num_ranks": ' + "9" * 5000 + "}",
    "gke": "cloud.google.com/gke-tpu-topology: 4x4", "csv": "collective,ranks,nbytes,seconds\n",
    "zero": "collective,ranks,nbytes,seconds\nall_reduce,8,0,0\n",
    "nans": "collective,ranks,nbytes,seconds\nall_reduce,8,1000,nan\n",
    "alone": "collective,ranks,nbytes,seconds\nall_reduce,1,1000,1e-3\n",
    "rocm": "==== ROCm System Management\n", "amd": '[{"gpu": 0}]', "hlo": "HloModule x\n",
    "teccl": '{"TopologyParams": {}}', "flows": '{"7-Flows": {}}', "taccl": '{"gpus_per_node": 2}',
    "sccl": '{"msccl_type": "topology"}', "rules": '{"rules": []}',
    "rule": "allreduce,0,9,rng,simple,-1,-1,-1\n", "infragraph": "devices: 3\n",
    "ns3": "4 3 4\n0\n1 0 400Gbps 0.1ms 0\n", "results": '{"results": []}',
    "multitree": "Accelerator 0\n", "utf16": "{".encode("utf-16"),
}  # fmt: skip
COMMANDS = (
    "bound {}", "bound {} --gpu h100", "verify {}", "verify {} --network ring:2", "prove {}",
    "simulate {} --network ring:3", "show {}", "show {} --nodes a", "convert {} o.json",
    "convert {} o.xml --network ring:2", "convert {} o.csv --collective all_reduce --ranks 2",
    "expect {}", "expect --log {}", "expect ring:2 --log {}", "calibrate {}",
    "calibrate {} --network ring:2", "tune show {}", "compare {} --only ring", "synth {} -s ring",
    "compare --from {}", "explain {} --size 1KB", "simulate {} --beside {} --network ring:2",
)  # fmt: skip


@pytest.mark.parametrize("name", CONTENTS)
def test_whatever_stands_in_a_file_a_refusal_is_a_line(capsys, monkeypatch, tmp_path, name):
    """No file of these is what a command takes, but for a rule that NCCL reads as another."""
    monkeypatch.chdir(tmp_path)
    content = CONTENTS[name]
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / f"{name}.json").write_bytes(data)
    for command in COMMANDS:
        code, out, err = called(capsys, *command.replace("{}", f"{name}.json").split())
        if code == 0:
            assert name in ("zero", "nans", "rules", "rule", "alone", "csv", "ns3", "amd"), command
            continue
        said = [line for line in err.splitlines() if not line.startswith("jaxcoll: warning: ")]
        assert (code, out, len(said)) == (2, "", 1), command
        assert "Traceback" not in err
        assert f"{name}.json" in said[0] or "--" in said[0], command
        assert data or "is empty" in said[0], command
    assert {path.name for path in tmp_path.iterdir()} <= {f"{name}.json", "o.json", "o.csv"}


@pytest.mark.parametrize(
    ("name", "said"),
    [("flat", "the topology is flat"), ("flats", "the topology is flat"),
     ("circle", "the switches 'a, b' are above each other only, in a circle"),
     ("circles", "is below itself"), ("empty", "the file is empty"),
     ("algo", "algo.json is MSCCL XML, which does not name the network")],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(capsys, monkeypatch, tmp_path, name, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{name}.json").write_text(str(CONTENTS[name]))
    assert said in refused(capsys, "bound", f"{name}.json")


def test_what_is_wrong_with_a_schedule_names_its_file(capsys, tmp_path):
    ring = jc.topologies.ring(3)
    plan, path = json.loads(jc.io.mscclpp.dumps(jc.synthesize(ring, "all_gather", "ring"))), None
    # Of the last rank nothing is sent any more: others wait for it.
    plan["gpus"][2]["threadblocks"][0]["ops"] = []
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan))
    assert f"{path}: " in refused(capsys, "simulate", path, "--network", "ring:3")


def test_a_folder_is_a_schedule_where_its_header_lies(capsys, tmp_path):
    assert f"{tmp_path} is a folder; give the path" in refused(capsys, "verify", tmp_path)
    (tmp_path / "header.json").write_text("{}")
    assert "add --network" in refused(capsys, "verify", tmp_path)


def test_a_proof_of_a_group_says_so(capsys, tmp_path):
    path = tmp_path / "s.json"
    options = ("torus:2x4", "--groups", "0-2,5", "-s", "ring", "-o", path)
    assert called(capsys, "synth", *options)[0] == 0
    assert "proved: every rank of 4 of 8 ranks ends with" in called(capsys, "verify", path)[1]


def test_machines_of_options_are_those_of_the_library():
    assert schedules.MACHINES == execution_costs.MACHINES


def test_cpus_are_not_asked_to_feed_links_of_gpus(capsys):
    """Charged for its copies a schedule would seem a hundred times slower than jax.lax."""
    for backend in ("links", "processes", "cpu"):
        said = refused(capsys, "explain", "dgx-h100:1", "--backend", backend)
        assert "which copy 4.545 GB/s, but links of H100 x1 carry 450 GB/s" in said
