"""What every test process needs: 16 CPU devices, and property tests without a stop-watch.

Sixteen devices, so that meshes of 8 and of 16 can be built in one process. Tests spend most of
their time in XLA's compiler and run each program once, so LLVM does not optimize: neither the HLO,
its collectives and its memory nor the operations depend on that. JAX reads both variables once,
when it starts, which is after this file is imported.

Property tests draw the same examples in every run, and many fresh ones with
HYPOTHESIS_PROFILE=thorough.

With several processes, all tests of studies run in the same one, because they share the studies'
small runs (``tests.experiments.runs``); other tests run with those of their file.
"""

from __future__ import annotations

import gc
import os
import re
import zlib

import pytest
from hypothesis import HealthCheck, settings

from tests import cpu_seconds, in_every_run
from tests.execute.meshes.xla_flags import cpu_devices

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Else JAX compares the file of each frame of an exception with its own folders: where refusals are
# tested, that took more than the refusals.
os.environ.setdefault("JAX_TRACEBACK_FILTERING", "off")
# NumPy reads it when it is first imported. Its matrices are small here, and threads that wait for
# another's share of one take as many CPU seconds as the work: the online tuner's leader alone half.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Processes that tests start import the studies too, which no wheel installs.
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
os.environ["PYTHONPATH"] = os.pathsep.join([_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
_given = os.environ.get("XLA_FLAGS", "")
_added = [flag for flag in cpu_devices(16).split() if flag.partition("=")[0] not in _given]
os.environ["XLA_FLAGS"] = " ".join([_given, *_added]).strip()

# The first example of a test may compile for seconds; a deadline would only measure that, and a
# slow machine is not an error of a test.
settings.register_profile(
    "ci",
    max_examples=20,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough",
    max_examples=500,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

STUDIES = "tests/experiments/"
# Folders and files whose tests take long come first, so that both processes end together.
LONG = (
    STUDIES,
    "tests/tensorstate/",
    "tests/synth/",
    "tests/execute/",
    "tests/tune/",
    "tests/test_",
)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection():
    """Thousands of tests and the modules they import stay to the end: nothing to be collected.

    Python would visit them some ten times while they are made, and JAX's graphs every few hundred
    objects afterwards: a tenth of the collection of tests, a fiftieth of those that trace.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        gc.enable()


def pytest_configure(config):
    for plugin in (cpu_seconds, in_every_run):
        config.pluginmanager.register(plugin)


def pytest_addoption(parser):
    parser.addoption(
        "--cpu",
        action="store_true",
        help="at the end the CPU seconds of all tests, and the tests and files that took most",
    )
    parser.addoption(
        "--part",
        metavar="K/N",
        type=_part,
        help="of the tests chosen otherwise, only part K (from 0) of N; by the names of tests, so "
        "that the parts hold every test once and a test stays in its part when others come",
    )


def _part(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not int(found[1]) < int(found[2]):
        raise pytest.UsageError(f"--part takes K/N with K from 0 to N - 1, such as 0/6, not {text}")
    return int(found[1]), int(found[2])


@pytest.hookimpl(trylast=True)  # parts of what -m and -k have left
def pytest_collection_modifyitems(config, items):
    if config.option.part is not None:
        which, parts = config.option.part
        mine = {item: zlib.crc32(item.nodeid.encode()) % parts == which for item in items}
        config.hook.pytest_deselected(items=[item for item in items if not mine[item]])
        items[:] = [item for item in items if mine[item]]
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def pytest_runtest_setup(item):
    for mark in item.iter_markers("targets"):
        from jaxcoll import aot  # and with it JAX, which few tests of a process may need

        (platform,) = mark.args
        if not aot.is_available(platform):
            pytest.skip(f"the compiler for {platform} is not installed: scripts/test --targets")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """The scheduler of ``--dist loadfile``, with the files of all studies as one."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # absent without the plugin that calls this

    class StudiesTogether(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return STUDIES if file.startswith(STUDIES) else file

    config.option.loadscopereorder = False  # by number of tests, few of which may take longest
    return StudiesTogether(config, log)
