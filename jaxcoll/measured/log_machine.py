"""The measured machine that a log of nccl-tests was made on, by its list of devices."""

from __future__ import annotations

import re

from jaxcoll.errors import FormatError, shown
from jaxcoll.measured.machines import Machine, machine_of
from jaxcoll.numerics import checks

# "#  Rank  0 Group  0 Pid  6899 on host-a device  0 [0000:04:00] NVIDIA H100 80GB HBM3"
_DEVICE = re.compile(
    r"# +Rank +(\d+) .{0,60}? on +(\S{1,80}) +device +\d+ +\[[^\]\n]{1,20}\] (.{1,80})"
)
# By what a device is called, and how many hosts there are; of a rack any number. The first that
# fits: GB200 contains B200.
_CALLED = (
    ("GB300", None, "gb300-rack"),
    ("GB200", None, "gb200-rack"),
    ("B200", 1, "b200-host"),
    ("NVIDIA H200", 1, "h200-host"),
    ("H100", 1, "h100-host"),
    ("H100", 2, "h100-2-hosts"),
    ("A100-SXM", 1, "a100-host"),
    ("MI300X", 1, "mi300x-host"),
    ("MI355X", 1, "mi355x-host"),
)


def machine_of_log(text: str) -> tuple[Machine, int]:
    """The machine of a log's devices, and how many ranks there are.

    Two hosts of H100 are taken for those with 400 Gbit/s per GPU: a log does not say.

    Raises:
        FormatError: no list of devices, devices of several kinds, or of a machine that nobody has
            measured.
    """
    found = _DEVICE.findall(checks.text(text, "text", FormatError))
    if not found:
        raise FormatError(
            "the log has no list of devices; name the network that it was measured on"
        )
    ranks, hosts = ({row[i] for row in found} for i in (0, 1))
    called = {row[2].strip() for row in found}
    if len(called) > 1:
        raise FormatError(f"the log has devices of several kinds, {shown(sorted(called))}")
    (name,) = called
    for part, count, machine in _CALLED:
        if part in name and count in (None, len(hosts)):
            return machine_of(machine), len(ranks)
    raise FormatError(
        f"nobody has published times of {len(hosts)} hosts of {shown(name)} that are "
        "known here; name the network that it was measured on"
    )
