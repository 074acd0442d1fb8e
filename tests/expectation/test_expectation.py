"""Expected times: measured rows and their sources, the model where there are none, one's own."""

from __future__ import annotations

import numpy as np
import pytest

import jaxcoll as jc
from jaxcoll import measured, validation
from jaxcoll.errors import CollectiveError, FormatError, TopologyError
from jaxcoll.io.timings import Timing, Timings
from jaxcoll.topology import rebuilt


def test_a_measured_size_is_the_row_itself():
    (found,) = jc.expect("h100-2-hosts", "all_reduce", [2**30]).sizes
    (report,) = found.reports
    assert (report.table.name, report.seconds) == ("oci-h100", pytest.approx(4.511e-3))
    assert report.error is None
    assert report.estimate.is_measured
    assert found.model is None
    assert found.of_bound == pytest.approx(found.bound_seconds / 4.511e-3)


def test_between_rows_the_known_error_is_that_of_held_out_ones():
    (found,) = jc.expect("gb200-rack:72", "all_gather", [10**9]).sizes
    (report,) = found.reports
    assert [row.nbytes for row in report.estimate.rows] == [603979776, 1207959552]
    known = validation.errors(
        validation.predictions("sizes", 0), ("machine", "collective", "size_class")
    )
    assert report.error == known["gb200-rack", "all_gather", "from 64 MiB"].mean
    # Between numbers of ranks, that of ranks that were left out.
    (between,) = jc.expect("gb200-rack:24", "all_gather", [10**9]).sizes
    known = validation.errors(
        validation.predictions("ranks", 0), ("machine", "collective", "size_class")
    )
    assert between.reports[0].error == known["gb200-rack", "all_gather", "from 64 MiB"].mean
    assert {row.curve.ranks for row in between.reports[0].estimate.rows} == {18, 32}


def test_of_several_tables_the_fastest_is_first():
    (found,) = jc.expect("h100-host", "all_reduce", [2**30]).sizes
    assert [report.table.name for report in found.reports] == ["azure-h100", "xla-gpu"]
    assert found.seconds == min(report.seconds for report in found.reports)


def test_a_network_that_has_the_links_of_a_machine_is_that_machine():
    by_network = jc.expect(jc.topologies.dgx_h100(1), "all_gather", [2**30])
    assert by_network.machine is measured.machine_of("h100-host")
    assert (
        by_network.sizes[0].seconds
        == jc.expect("h100-host", "all_gather", [2**30]).sizes[0].seconds
    )
    # A link is down: nobody has measured that.
    slow = jc.topologies.dgx_h100(1).scaled({(0, 8): 0.5})
    assert jc.expect(slow, "all_gather", [2**20]).machine is None


def test_where_nobody_measured_the_model_says_so():
    # More than any table has.
    (found,) = jc.expect("mi300x-host", "all_gather", [2**33]).sizes
    assert found.reports == ()
    assert found.model is not None
    assert "bfb on links fitted to mi300x-host" in found.model.said
    known = validation.errors(validation.of_links("mi300x-host", 0), ("collective", "size_class"))
    (reduced,) = jc.expect("mi300x-host", "reduce_scatter", [2**33]).sizes
    assert reduced.model is not None
    assert reduced.model.error == known["reduce_scatter", "from 64 MiB"].mean
    # Hosts that are joined by links that no fit has seen, and a collective that none has.
    (four,) = jc.expect(jc.topologies.dgx_h100(4), "all_gather", [2**26]).sizes
    assert four.model is not None
    assert four.model.error is None
    assert "others by the data sheet" in four.model.said
    (torus,) = jc.expect(jc.topologies.torus(2, 2), "broadcast", [2**20]).sizes
    assert torus.model is not None
    assert torus.model.said == "auto on the links given"
    assert torus.seconds >= torus.bound_seconds


def own(machine: str, factor, kind: str = "all_reduce") -> Timings:
    """A log of times that are some factor of those that others measured."""
    sizes = [2**k for k in range(16, 32)]
    found = jc.expect(machine, kind, sizes)
    return Timings(tuple(
        Timing(kind, found.network.num_ranks, int(row.nbytes), row.seconds * factor(row.nbytes))
        for row in found.sizes
    ))  # fmt: skip


def test_one_s_own_log_is_held_against_the_others():
    log = own("a3-mega-2-hosts", lambda n: 1 / 0.71 if n >= 2**26 else 1.04 if n >= 2**20 else 0.5)
    found = jc.expect("a3-mega-2-hosts", "all_reduce", log=log)
    assert [row.nbytes for row in found.sizes] == [2**k for k in range(16, 32)]
    assert found.verdicts == (
        "below 1 MiB: yours are 2.00 times as fast as others measured",
        "1 to 64 MiB: yours are as fast as others measured, within 10 %",
        "from 64 MiB: yours reach 71 % of the speed that others measured",
    )
    assert np.allclose([row.reached for row in found.sizes if row.nbytes >= 2**26], 0.71)


def test_a_log_of_something_else_is_refused(tmp_path):
    log = own("h100-host", lambda n: 1.0)
    with pytest.raises(FormatError, match="no times of all_gather; it has all_reduce"):
        jc.expect("h100-host", "all_gather", log=log)
    with pytest.raises(FormatError, match="expected a log of 16 ranks, got one of"):
        jc.expect("h100-2-hosts", "all_reduce", log=log)
    with pytest.raises(FormatError, match="the log has none of these sizes"):
        jc.expect("h100-host", "all_reduce", [12345], log=log)
    path = tmp_path / "log.csv"
    jc.io.timings.save(path, log.rows)
    assert jc.expect("h100-host", "all_reduce", [2**20], log=path).sizes[0].own_seconds


def test_bad_input_is_refused_by_name():
    with pytest.raises(FormatError, match="nobody has measured a machine 'h300-host'"):
        jc.expect("h300-host")
    with pytest.raises(FormatError, match="measured with 2 to 72 ranks, not with 73"):
        jc.expect("gb200-rack:73")
    with pytest.raises(FormatError, match="not a machine's name and a number of ranks"):
        jc.expect("gb200-rack:x")
    with pytest.raises(TopologyError, match="network must be a Topology"):
        jc.expect(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(CollectiveError, match="a size"):
        jc.expect("h100-host", sizes=[-1])


LINE = "#  Rank {0:2} Group  0 Pid   6899 on {1} device  {2} [0000:04:00] {3}\n"


def devices(hosts: int, name: str, each: int = 8) -> str:
    ranks = range(hosts * each)
    return "".join(LINE.format(i, f"host{i // each}", i % each, name) for i in ranks)


@pytest.mark.parametrize(
    ("text", "machine", "ranks"),
    [
        (devices(1, "NVIDIA H100 80GB HBM3"), "h100-host", 8),
        (devices(1, "NVIDIA H100 80GB HBM3", 4), "h100-host", 4),
        (devices(2, "NVIDIA H100 80GB HBM3"), "h100-2-hosts", 16),
        (devices(1, "NVIDIA B200"), "b200-host", 8),
        (devices(9, "NVIDIA GB200", 4), "gb200-rack", 36),
        (devices(1, "AMD Instinct MI300X"), "mi300x-host", 8),
    ],
)
def test_a_log_says_its_machine(text, machine, ranks):
    assert measured.machine_of_log(text) == (measured.machine_of(machine), ranks)


def test_logs_of_other_machines_are_refused():
    for text, message in (
        ("all_reduce_perf", "no list of devices"),
        (devices(1, "NVIDIA A100"), "nobody has published times of 1 hosts of 'NVIDIA A100'"),
        (devices(3, "NVIDIA H100"), "3 hosts of 'NVIDIA H100'"),
        (devices(1, "NVIDIA H100") + devices(1, "NVIDIA A100"), "devices of several kinds"),
    ):
        with pytest.raises(FormatError, match=message):
            measured.machine_of_log(text)


def test_latencies_of_files_do_not_hide_a_measured_machine():
    host = jc.topologies.dgx_h100(1)
    told = rebuilt(host, alpha=np.full(host.num_links, 5e-6))
    assert jc.expect(told, "all_reduce", [2**30]).machine == jc.expect(host).machine


def test_the_model_of_several_hosts_is_no_worse_than_its_schedule():
    """Rings through hosts take more pieces than those of one."""
    (found,) = jc.expect(jc.topologies.dgx_h100(4), "all_reduce", [10**9]).sizes
    assert found.model is not None
    assert found.model.seconds < 1.5 * found.bound_seconds
