"""The CPU seconds of every test, with the processes that it waited for: a plugin of pytest.

Seconds of the clock depend on what else runs on the machine, so they say nothing of a test. Tests
of more than ``MOST`` CPU seconds are named at the end of every run, and ``--cpu`` prints the tests
and the files that took most.
"""

from __future__ import annotations

import collections
import os

import pytest

# CPU seconds of a test that is not marked slow: a warning and no failure, as machines differ.
MOST = 10
PRINTED = 20
_BEGAN = pytest.StashKey[float]()
_NAME = "CPU seconds"


def _now() -> float:
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    item.stash[_BEGAN] = _now()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    # The last report of a test; all are sent to the process that prints.
    if call.when == "teardown":
        seconds = _now() - item.stash[_BEGAN]
        is_slow = "slow" in item.keywords or "targets" in item.keywords
        report.user_properties.append((_NAME, seconds, is_slow))
    return report


def pytest_terminal_summary(terminalreporter, config):
    spent, marked = {}, set()
    for report in (r for reports in terminalreporter.stats.values() for r in reports):
        for name, *found in getattr(report, "user_properties", ()):
            if name == _NAME:
                spent[report.nodeid], is_slow = found
                marked |= {report.nodeid} if is_slow else set()
    if config.option.cpu:
        files = collections.Counter()
        for test, seconds in spent.items():
            files[test.split("::")[0]] += seconds
        terminalreporter.section(f"{sum(spent.values()) / 60:.1f} CPU minutes without collection")
        for counter in (files, collections.Counter(spent)):
            for name, seconds in counter.most_common(PRINTED):
                terminalreporter.write_line(f"{seconds:7.1f} s  {name}")
    for test in sorted(name for name, s in spent.items() if s > MOST and name not in marked):
        terminalreporter.write_line(
            f"{test} took {spent[test]:.0f} CPU s: mark it slow, or make it smaller", yellow=True
        )
