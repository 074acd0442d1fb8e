"""The tuner plugin for NCCL: a driver in C plays NCCL and must be answered as the rules say."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxcoll.errors import TuneError
from jaxcoll.io.nccl.conf import ALGORITHMS, COLLECTIVES, PROTOCOLS
from jaxcoll.tune.nccl import NcclRule, answer
from jaxcoll.tune.nccl.shared_table import SOURCES, SharedTable, build

needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None or not sys.platform.startswith("linux"),
    reason="a C compiler on Linux compiles the plugin",
)
KINDS = tuple(COLLECTIVES)
RULES = (
    NcclRule("all_reduce", 0, 1000, "tree", "ll", channels=2, nodes=1, ranks=8, chunk_bytes=4096),
    NcclRule("all_reduce", 500, None, "ring", "simple", nodes=1, ranks=8, pipelined_ops=2),
    NcclRule("all_reduce", 1001, 2000, "nvls", "simple", channels=16, registered=True),
    NcclRule("all_reduce", 1001, None, "ring", "ll128", channels=128, chunk_bytes=1 << 40),
    NcclRule("all_gather", 0, None, "pat", "simple", ranks=16),
    NcclRule("reduce_scatter", 7, 7, "ring", "ll"),
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> tuple[Path, Path]:
    """The plugin and the driver, compiled with every warning an error."""
    folder = tmp_path_factory.mktemp("plugin")
    driver = folder / "driver"
    source = Path(__file__).with_name("driver.c")
    flags = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-ldl")
    subprocess.run(["cc", str(source), *flags, "-o", str(driver)], check=True)
    return build(folder / "plugin.so"), driver


class Nccl:
    """A running driver."""

    def __init__(self, compiled, version: int, ranks: int, nodes: int, table: str | None):
        plugin, driver = compiled
        command = [str(driver), str(plugin), str(version), str(ranks), str(nodes)]
        env = {k: v for k, v in os.environ.items() if k != "JAXCOLL_NCCL_TABLE"}
        env |= {} if table is None else {"JAXCOLL_NCCL_TABLE": table}
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self._process = subprocess.Popen(command, env=env, text=True, **pipes)  # type: ignore[call-overload]

    def ask(self, kind: str, nbytes: int, pipelined=1, registered=0, ignored=-1) -> tuple[int, ...]:
        asked, answered = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answered is not None
        asked.write(f"{KINDS.index(kind)} {nbytes} {pipelined} {registered} {ignored}\n")
        asked.flush()
        return tuple(map(int, answered.readline().split()))

    def end(self) -> str:
        """Its standard error, once it ended well."""
        _, said = self._process.communicate(timeout=30)
        assert self._process.returncode == 0, said
        return said


def expected(rule: NcclRule | None, version: int) -> tuple[int, ...]:
    if rule is None:
        return (-1, -1, 0, 1)
    chunk = rule.chunk_bytes if version >= 6 and rule.chunk_bytes else 1
    places = ALGORITHMS.index(rule.algorithm), PROTOCOLS.index(rule.protocol)
    return (*places, rule.channels or 0, chunk)


def questions() -> Iterator[tuple[str, int]]:
    for kind in COLLECTIVES:
        for nbytes in (0, 6, 7, 8, 499, 500, 1000, 1001, 2000, 2001, 2**40, 2**64 - 1):
            yield kind, nbytes


@needs_compiler
@pytest.mark.skipif("NCCL_TUNER_HEADERS" not in os.environ, reason="set NCCL_TUNER_HEADERS")
def test_layouts_are_those_of_nccls_headers(tmp_path):
    """NCCL_TUNER_HEADERS is the folder plugins/tuner/example/nccl of a checkout of NCCL 2.32."""
    source = Path(__file__).with_name("headers_check.c")
    folders = [f"-I{SOURCES}", f"-I{os.environ['NCCL_TUNER_HEADERS']}"]
    command = ["cc", "-std=c11", "-fsyntax-only", *folders, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@needs_compiler
@pytest.mark.parametrize("version", [5, 6, 7])
@pytest.mark.parametrize(("ranks", "nodes"), [(8, 1), (16, 2)])
def test_nccl_is_answered_as_the_rules_say(compiled, tmp_path, version, ranks, nodes):
    table = SharedTable(tmp_path / "table")
    assert table.publish(RULES) == 1
    nccl = Nccl(compiled, version, ranks, nodes, str(table.path))
    for kind, nbytes in questions():
        rule = answer(RULES, kind, nbytes, nodes, ranks)
        assert nccl.ask(kind, nbytes) == expected(rule, version), (kind, nbytes)
    rule = answer(RULES[1:], "all_reduce", 600, nodes, ranks, pipelined_ops=2)
    found = nccl.ask("all_reduce", 600, pipelined=2, ignored=0)  # tree by ll cannot run
    assert found[:3] == expected(rule, version)[:3]
    registered = nccl.ask("all_reduce", 1500, registered=1)
    assert registered[:3] == (ALGORITHMS.index("nvls"), PROTOCOLS.index("simple"), 16)
    assert "generation 1 of the table, 6 rules" in nccl.end()


@needs_compiler
def test_a_running_communicator_follows_each_generation(compiled, tmp_path):
    table = SharedTable(tmp_path / "table", capacity=4)
    nccl = Nccl(compiled, 6, 8, 1, str(table.path))
    assert nccl.ask("all_reduce", 10) == expected(None, 6)
    choices = random.Random(0)
    for generation in range(1, 30):
        rules = [
            NcclRule("all_reduce", 0, None, choices.choice(("ring", "tree")), "ll", channels=c)
            for c in choices.sample(range(1, 128), choices.randint(0, 4))
        ]
        assert table.publish(rules) == generation
        wanted = answer(rules, "all_reduce", 10, 1, 8)
        assert nccl.ask("all_reduce", 10) == expected(wanted, 6)
    said = nccl.end()
    assert said.count("generation") == 29
    table.close()


@needs_compiler
def test_a_generation_that_is_being_written_is_not_read(compiled, tmp_path):
    table = SharedTable(tmp_path / "table")
    table.publish([NcclRule("all_reduce", 0, None, "ring", "ll", channels=3)])
    nccl = Nccl(compiled, 7, 8, 1, str(table.path))
    assert nccl.ask("all_reduce", 10)[2] == 3
    with open(table.path, "r+b") as file:
        file.seek(8)
        file.write((3).to_bytes(8, sys.byteorder))  # odd
        file.seek(64 + 12)
        file.write((99).to_bytes(4, sys.byteorder))  # channels
        file.flush()
        assert nccl.ask("all_reduce", 10)[2] == 3
        file.seek(8)
        file.write((4).to_bytes(8, sys.byteorder))
    assert nccl.ask("all_reduce", 10)[2] == 99
    nccl.end()


@needs_compiler
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "the variable is not set"),
        (b"", "shorter than a header"),
        (b"JXCTUNE1" + bytes(55), "shorter than a header"),
        (b"JXCTUNE9" + bytes(56), "not a table of this version"),
        (b"JXCTUNE1" + bytes(8) + (9).to_bytes(4, sys.byteorder) + bytes(44 + 64), "cut short"),
        ("absent", "No such file"),
    ],
)
def test_without_a_sound_table_nccl_decides_by_itself(compiled, tmp_path, content, words):
    path = None if content is None else str(tmp_path / "table")
    if isinstance(content, bytes):
        (tmp_path / "table").write_bytes(content)
    nccl = Nccl(compiled, 6, 8, 1, path)
    assert nccl.ask("all_reduce", 10) == expected(None, 6)
    said = nccl.end()
    assert "2 64 jaxcoll: no table, NCCL's own choices" in said
    assert words in said


def test_too_many_rules_leave_the_table_unchanged(tmp_path):
    table = SharedTable(tmp_path / "table", capacity=2)
    table.publish(RULES[:2])
    before = table.path.read_bytes()
    with pytest.raises(TuneError, match="3 rules do not fit into a shared table of 2"):
        table.publish(RULES[:3])
    assert table.path.read_bytes() == before
    assert table.environment("/p.so")["JAXCOLL_NCCL_TABLE"] == str(table.path)


def test_a_compiler_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(TuneError, match="no C compiler 'no-such-cc'"):
        build(tmp_path / "p.so", compiler="no-such-cc")
    assert (SOURCES / "plugin.c").exists()
