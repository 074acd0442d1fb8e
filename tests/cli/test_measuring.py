"""``measured`` and ``expect`` on the command line."""

from __future__ import annotations

import json

import pytest

import jaxcoll as jc
from tests.cli.calls import called, refused
from tests.expectation.test_expectation import devices, own
from tests.measured.test_xla_plugin import chip, plugin, row, rows_of


def printed(capsys, *arguments: object) -> str:
    """The output of a command that does its work."""
    code, out, err = called(capsys, *arguments)
    assert (code, err) == (0, "")
    return out


def test_expect_says_sources_and_the_bound(capsys):
    out = printed(capsys, "expect", "dgx-h100:2", "all_reduce", "--size", "25MB,1GiB")
    assert "all_reduce of 16 ranks, h100-2-hosts: 2 hosts of 8 H100" in out
    assert "232.6 us between 157.4 us of 10MiB and 646.7 us of 100MiB" in out
    assert "4.511 ms measured (oci-h100: nccl-tests on NCCL 2.21; date not known)" in out
    assert "1GiB: at best 2.69 ms; 60 % of that speed is reached" in out


def test_expect_as_json_has_the_rows(capsys):
    found = json.loads(
        printed(capsys, "expect", "gb200-rack:36", "all_gather", "--size", "1GB", "--json")
    )
    (size,) = found["sizes"]
    (report,) = size["measured"]
    assert (found["machine"], found["ranks"], size["model"]) == ("gb200-rack", 36, None)
    assert [row["ranks"] for row in report["rows"]] == [36, 36]
    assert size["of_bound"] == size["bound_seconds"] / size["seconds"]


def test_a_log_alone_says_its_machine(capsys, tmp_path):
    log = own("h100-2-hosts", lambda n: 2.0 if n >= 2**26 else 1.0)
    rows = "".join(
        f"{row.nbytes} {row.nbytes // 4} float sum -1 {1e6 * row.seconds:.3f} 1 1 0\n"
        for row in log.rows
    )
    path = tmp_path / "log.txt"
    head = "# size count type redop root time algbw busbw #wrong\n"
    text = "# Collective test starting: all_reduce_perf\n" + devices(2, "NVIDIA H100") + head + rows
    path.write_text(text)
    out = printed(capsys, "expect", "--log", str(path))
    assert "from 64 MiB: yours reach 50 % of the speed that others measured" in out
    assert "1 to 64 MiB: yours are as fast as others measured, within 10 %" in out
    assert "no times of all_gather" in refused(
        capsys, "expect", "h100-2-hosts", "all_gather", "--log", str(path)
    )
    # The collective is the log's where it says one, or stands in the place of the network.
    path.write_text(text.replace("all_reduce_perf", "all_gather_perf"))
    assert "all_gather of 16 ranks" in printed(capsys, "expect", "--log", str(path))
    old = text.replace("# Collective test starting: all_reduce_perf\n", "")
    path.write_text(old)
    assert "all_gather of 16 ranks" in printed(capsys, "expect", "all_gather", "--log", str(path))
    # Sums taken for a gather would be half as fast as they are.
    for network in ((), ("dgx-h100:2",)):
        said = refused(capsys, "expect", *network, "--log", str(path))
        assert "does not say which collective was measured; name it" in said


def test_a_machine_is_a_network_of_every_command(capsys):
    least = json.loads(
        printed(capsys, "bound", "gb300-rack", "all_gather", "--size", "1GiB", "--json")
    )
    assert least["ranks"] == 72
    facts = json.loads(printed(capsys, "show", "mi300x-host:4", "--json"))
    assert (facts["ranks"], facts["switches"]) == (4, 0)
    assert "type h100-host" in refused(capsys, "bound", "h100-host", "--bandwidth", "1GB/s")
    assert "measured with 2 to 8 ranks, not with 9" in refused(capsys, "bound", "h100-host:9")
    assert "type h100-host" in refused(capsys, "bound", "h100-host:2x4")
    assert "h100-host[:RANKS]" in printed(capsys, "show", "--names")


def test_measured_lists_tables_and_curves(capsys):
    out = printed(capsys, "measured")
    assert "xla-gpu: 5055 times, openxla/xla" in out
    assert "gb200-rack: GB200 NVL72" in out
    found = json.loads(printed(capsys, "measured", "a3-mega-2-hosts", "--json"))
    (curve,) = found["curves"]
    assert (curve["table"], len(curve["nbytes"]), curve["in_place"]) == ("gcp-h100", 31, False)
    assert "nobody has measured a machine 'tpu'" in refused(capsys, "measured", "tpu")
    assert "--xla and --output belong together" in refused(capsys, "measured", "--xla", "x.so")


def test_xla_s_table_is_written(capsys, tmp_path):
    path = plugin(tmp_path, chip("sm_90", *rows_of(), row("all-to-all", 2**20, 0)))
    made = tmp_path / "made.json"
    out = printed(capsys, "measured", "--xla", str(path), "--date", "2026", "-o", str(made))
    assert "left out: sm_90 all-to-all 1x8 of 4194304 bytes: throughput 0" in out
    assert jc.measured.load(made).rows == 200


def test_compare_on_a_machine_says_no_plainly(capsys):
    asked = ("compare", "--machine", "h100-host", "all_gather", "--size", "64MiB")
    code, out, _ = called(capsys, *asked, "--only", "direct,bfb")
    assert code == 0
    assert out.startswith("all_gather of 8 ranks, h100-host: 8 H100 around NVSwitches\n")
    assert "its own, measured" in out
    assert "64MiB: no: direct, our fastest, takes " in out
    assert "not defined here: bfb" in out
    # A busy machine takes long enough for a line of progress, which goes to stderr.
    found = json.loads(called(capsys, *asked, "--only", "direct,bfb", "--json")[1])
    (verdict,) = found["verdicts"]
    assert (verdict["answer"], verdict["best"], verdict["table"]) == ("no", "direct", "xla-gpu")
    assert verdict["seconds"] == found["entries"][0]["seconds"][0]
    assert verdict["share"] == verdict["seconds"] / verdict["own_seconds"] > verdict["factor"]
    assert "without switches" in found["entries"][1]["refused"]


def test_compare_on_a_machine_names_an_algorithm_that_was_forced_there(capsys):
    asked = ("compare", "--machine", "fugaku-4x4x4", "reduce_scatter", "--size", "64MiB")
    _, out, _ = called(capsys, *asked, "--only", "bucket")
    assert "64MiB: yes: bucket" in out
    assert "forced there, was measured at 0." in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("torus:2x2",), "nobody has published times of torus 2x2"),
        (("h100-host", "--alpha", "1us"), "leave --alpha out"),
        (("h100-host", "--from", "x.txt"), "leave --from out"),
        (("h100-host", "--in-network", "none"), "leave --in-network out"),
        (("h100-host", "ring:4"), "no collective is called 'ring:4', and --machine says"),
        (("h100-2-hosts", "all_gather"), "published are those of all_reduce"),
        (("h100-host", "--only", "blind"), "no synthesizer is called 'blind'"),
        (("h100-host", "--only", "jax.lax"), "synthesizer"),
    ],
)
def test_compare_on_a_machine_refuses(capsys, arguments, said):
    assert said in refused(capsys, "compare", "--machine", *arguments)


def test_expect_draws_its_times(capsys, tmp_path):
    path = tmp_path / "times.svg"
    out = called(capsys, "expect", "h100-host", "all_gather", "--size", "1MiB", "--plot", path)[1]
    assert out.endswith(f"drawn to {path}\n")
    assert "measured (xla-gpu)" in (text := path.read_text())
    assert "at best" in text
    assert "ends with .png" in refused(capsys, "expect", "h100-host", "--plot", "times.txt")


def test_a_page_lies_beside_its_figures(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxcoll.validation.page.SECTIONS", {})
    monkeypatch.setattr("jaxcoll.validation.page.FIGURES", {"carried": "images/carried.png"})
    assert called(capsys, "measured", "--page", tmp_path / "page.md")[0] == 0
    assert (tmp_path / "page.md").read_text().startswith("# Predicted and measured")
    assert (tmp_path / "images" / "carried.png").read_bytes().startswith(b"\x89PNG")
