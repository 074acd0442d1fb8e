"""nccl-tests: every version's columns are found by their names, and nothing is guessed."""

from __future__ import annotations

import json

import pytest

from jaxcoll.configurations import NVLINK_DEFAULT, Task
from jaxcoll.errors import FormatError
from jaxcoll.tune.nccl import nccl_tests
from jaxcoll.tune.table import Table
from jaxcoll.tune.table_file import Machine
from tests.io.mutations import refuses

H100 = Machine("gpu: NVIDIA H100", "0.12.0")
DEVICES = """# Using devices
#  Rank  0 Group  0 Pid   1001 on      host device  0 [0000:11:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   1001 on      host device  1 [0000:20:00] NVIDIA H100 80GB HBM3
"""
NEW = f"""# nccl-tests version 2.17.6 nccl-headers=22800 nccl-library=22800
# Collective test starting: all_gather_perf
# nThread 1 nGpus 2 minBytes 1048576 maxBytes 2097152 step: 2(factor) validation: 1 graph: 0
#
{DEVICES}#
#                                         out-of-place                in-place
#    size   count  type redop root  time  algbw  busbw #wrong  time  algbw  busbw #wrong
#     (B) (elements)                (us) (GB/s) (GB/s)         (us) (GB/s) (GB/s)
host:1001:1001 [0] NCCL INFO Connected all rings
  1048576  131072 float  none  -1  20.00  52.43  26.21      0  19.50  53.77  26.89      0
[1,0]<stdout>:  2097152  262144 float none  -1 31.25 67.11 33.55      0  31.00  67.65 33.83  N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 30.12
# Collective test concluded: all_gather_perf
"""
OLD = f"""{DEVICES}#
#                                         out-of-place                   in-place
#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)             (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        131072    half    20.00   52.43   26.21  0e+00    19.50   53.77   26.89    N/A
     2097152        262144    half    20.00   52.43   26.21  3e+01    19.50   53.77   26.89  0e+00
"""
STATISTICS = f"""# Collective test starting: all_reduce_perf
{DEVICES}#
# size count type redop root time algbw busbw #wrong i_min i_max time algbw busbw #wrong i_min i_max
 4096 1024 bfloat16 sum -1 10.00 0.41 0.41 2 9.0 11.0 11.00 0.37 0.37 0 10.0 12.0
"""


def test_a_new_version_between_lines_of_others():
    result = nccl_tests.loads(NEW)
    assert (result.collective, result.ranks) == ("all_gather", 2)
    first, second = result.rows
    assert (first.nbytes, first.dtype, first.wrong) == (1048576, "float32", 0)
    assert (first.seconds, first.seconds_in_place) == pytest.approx((20e-6, 19.5e-6))
    assert (second.nbytes, second.wrong) == (2097152, 0)


def test_an_old_version():
    result = nccl_tests.loads(OLD)
    assert (result.collective, result.ranks) == (None, 2)
    assert [row.wrong for row in result.rows] == [0, 1]
    assert result.rows[0].dtype == "float16"


def test_statistics_after_each_half():
    (row,) = nccl_tests.loads(STATISTICS).rows
    assert (row.wrong, row.seconds, row.seconds_in_place) == (2, 1e-5, 1.1e-5)


def test_times_become_history_and_wrong_results_quarantine():
    table = Table()
    assert nccl_tests.loads(NEW).add_to(table, NVLINK_DEFAULT, H100) == 2
    task = Task("all_gather", 1048576, "float32", 2)
    assert table.times(task, H100) == {NVLINK_DEFAULT: (pytest.approx(20e-6),)}
    assert nccl_tests.loads(STATISTICS).add_to(table, NVLINK_DEFAULT, H100) == 0
    wrong = Task("all_reduce", 4096, "bfloat16", 2)
    assert table.quarantined[H100, wrong, NVLINK_DEFAULT] == "2 wrong values"
    with pytest.raises(FormatError, match="give collective="):
        nccl_tests.loads(OLD).add_to(table, NVLINK_DEFAULT, H100)
    assert nccl_tests.loads(OLD).add_to(table, NVLINK_DEFAULT, H100, "reduce_scatter") == 1


def test_nothing_and_half_a_head_are_refused():
    with pytest.raises(FormatError, match="it has no header with size"):
        nccl_tests.loads("")
    with pytest.raises(FormatError, match="ended before its first row"):
        nccl_tests.loads(NEW[: NEW.index("host:1001")])


test_other_text_is_refused = refuses(nccl_tests.loads, FormatError, NEW, "nccl_tests")


def test_json():
    half = {"time": 20.0, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": 0}
    result = {"size": 1024, "count": 256, "type": "float", "redop": "sum", "root": "-1"}
    whole = {
        "version": 3,
        "devices": [{}, {}],
        "results": [result | {"out_of_place": half, "in_place": half | {"nwrong": "N/A"}}],
    }
    (row,) = nccl_tests.loads_json(json.dumps(whole), "all_reduce").rows
    assert (row.nbytes, row.dtype, row.wrong) == (1024, "float32", 0)
    assert row.seconds == pytest.approx(20e-6)
    whole["results"][0]["out_of_place"]["time"] = "nan"
    with pytest.raises(FormatError, match=r"results\[0\]\.out_of_place\.time must be a number"):
        nccl_tests.loads_json(json.dumps(whole))


BLANK = """
# nThread 1 nGpus 2 minBytes 1048576 maxBytes 2097152 step: 2(factor) warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid      1 on a device  0 [0x00] NVIDIA H100
#  Rank  1 Group  0 Pid      1 on a device  1 [0x00] NVIDIA H100
#  size    count      type   redop    root     time   algbw   busbw #wrong     time   algbw
#  (B) (elements)                           (us)  (GB/s)  (GB/s)            (us)  (GB/s)
 1048576         32768     float              -1    43.21   24.27   21.23      0    42.11   24.90
 2097152         65536     float                    63.21   33.18   29.03      0    62.11   33.76
 4194304        131072     float    none      -1    90.21   33.18   29.03      0    91.11   33.76
"""


def test_columns_that_do_not_apply_may_be_blank():
    """As some versions of alltoall_perf leave them, each by its place and not by any mark."""
    rows = nccl_tests.loads(BLANK).rows
    assert [row.seconds for row in rows] == pytest.approx([43.21e-6, 63.21e-6, 90.21e-6])
    assert [row.seconds_in_place for row in rows] == pytest.approx([42.11e-6, 62.11e-6, 91.11e-6])
    # Cut at its end, a row is not one whose columns are blank.
    for cells in (1, 2):
        torn = " ".join(BLANK.splitlines()[-1].split()[:-cells])
        with pytest.raises(FormatError, match=r"columns where the header has|a time must be"):
            nccl_tests.loads(BLANK + torn)
