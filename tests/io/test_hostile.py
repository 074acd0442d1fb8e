"""Files made to hurt: short ones that claim, repeat or nest much are refused before the work."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path

import pytest

import jaxcoll as jc
from jaxcoll import finder, io, topologies
from jaxcoll.aot import parse
from jaxcoll.aot.hlo import permuted_pairs, replica_groups
from jaxcoll.aot.summary import summarize_module
from jaxcoll.errors import FormatError, TuneError
from jaxcoll.io import msccl, multitree
from jaxcoll.io.msccl import replay
from jaxcoll.tune.nccl import nccl_tests, ncclx
from jaxcoll.tune.table import Table
from tests.aot.test_aot import GPU
from tests.io.kinds import kinds
from tests.io.mutants import try_mutants
from tests.tune.test_table import a_table

RING = topologies.ring(4)
ALGO = (
    '<algo name="x" proto="Simple" nchannels="1" nchunksperloop="{chunks}" ngpus="{ranks}" '
    'coll="{coll}" inplace="1">'
)


# ---------------------------------------------------------------------- paths


def pipe(path: Path) -> None:
    os.mkfifo(path)


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


@pytest.mark.parametrize(
    ("make", "kind"), [(pipe, "pipe"), (Path.mkdir, "folder"), (socket_at, "socket")]
)
def test_only_files_are_read_and_written(tmp_path, make, kind):
    path = tmp_path / "x"
    make(path)
    for call in (
        lambda: io.load(path),
        lambda: msccl.load(path, RING),
        lambda: multitree.load(path),
        lambda: Table.load(path),
        lambda: finder.Frontiers.load(path),
        lambda: io.save(path, RING),
    ):
        with pytest.raises(FormatError, match=f"x is a {kind}; give the path of a file"):
            call()
    skipped: list[str] = []
    assert Table.load_usable([path], skipped=skipped.append) == Table()
    assert kind in skipped[0]


def test_devices_are_neither_read_nor_replaced():
    for call in (io.load, lambda path: io.save(path, RING)):
        with pytest.raises(FormatError, match="/dev/null is a device"):
            call("/dev/null")


@pytest.mark.parametrize("path", [None, 5, b"x", ["x"], "a\0b", 1.5])
def test_what_is_no_path_is_refused(path):
    for call in (io.load, lambda path: io.save(path, RING)):
        with pytest.raises(FormatError, match="a path"):
            call(path)


# ---------------------------------------------------------------------- MSCCL


def test_xml_has_no_entities():
    laughs = '<!DOCTYPE algo [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]>'
    body = ALGO.format(chunks=1, ranks=1, coll="allgather") + '<gpu id="0"></gpu></algo>'
    for text in (
        laughs + body,
        f"<?pi?>{laughs}{body}",
        f"<!-- {laughs} -->{laughs}{body}",
        f'<?xml version="1.0"?>\n<!--x-->{laughs}{body}',
        f"{body}<?pi?>",
    ):
        with pytest.raises(FormatError, match="instructions are not read, nor a document type"):
            msccl.loads(text)
    assert msccl.loads(f'<?xml version="1.0"?><!-- a comment -->{body}').name == "x"
    with pytest.raises(FormatError, match="undefined entity"):
        msccl.loads(body.replace('name="x"', 'name="&a;"'))


def test_comments_that_never_end_are_read_once():
    """A regular expression for comments went through the rest of the text from each of these."""
    with pytest.raises(FormatError, match="not XML"):
        msccl.loads("<!--" * 500_000)
    with pytest.raises(FormatError, match=r"expected <algo>, got <deep>"):
        msccl.loads("<deep>" * 500_000)
    with pytest.raises(FormatError, match="expected <nothing>"):
        msccl.loads("<algo><gpu><tb><step>" + "<step>" * 500_000)


@pytest.mark.parametrize("collective", ["allgather", "allreduce", "reduce_scatter"])
def test_programs_that_claim_chunks_and_do_nothing(collective):
    """To write down every cell of every rank before the run took 9 s and 700 MB here."""
    for ranks in (64, 256):
        chunks = 2**15 // ranks * ranks - ranks
        rows = "".join(f'<gpu id="{r}"></gpu>' for r in range(ranks))
        program = ALGO.format(chunks=chunks, ranks=ranks, coll=collective) + rows + "</algo>"
        with pytest.raises((FormatError, jc.errors.ScheduleError)):
            msccl.lift(msccl.loads(program), topologies.ring(ranks))


def test_waits_are_followed_once():
    """A chain of blocks that each wait for the next: each is looked at a few times, not each time
    that one of them moves.
    """
    count = 1024  # as many as a reader takes

    def wait(block: int) -> str:
        after = f'depid="{block + 1}" deps="0"' if block < 127 else 'depid="-1" deps="-1"'
        return (
            f'<tb id="{block}" send="-1" recv="-1" chan="0"><step s="0" type="nop" srcbuf="i" '
            f'srcoff="-1" dstbuf="o" dstoff="-1" cnt="0" {after} hasdep="1"/></tb>'
        )

    rows = "".join(map(wait, range(count)))
    program = ALGO.format(chunks=2, ranks=2, coll="allgather")
    program += f'<gpu id="0">{rows}</gpu><gpu id="1">{rows}</gpu></algo>'
    looked = 0
    awaited = replay._Run._awaited

    def counted(run, rank, block):
        nonlocal looked
        looked += 1
        return awaited(run, rank, block)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay._Run, "_awaited", counted)
        with pytest.raises(jc.errors.ScheduleError, match="never receives"):
            msccl.lift(msccl.loads(program), topologies.ring(2))
    assert looked <= 3 * 2 * count


# ---------------------------------------------------------------------- JSON


def test_a_short_schedule_cannot_claim_much_work():
    said = json.loads(
        io.dumps(jc.synthesize(topologies.ring(500), "broadcast", "direct", chunks=1))
    )
    said["collective"] |= {
        "kind": "all_gather", "chunks_per_shard": 2**22, "groups": [[0]], "root": None
    }  # fmt: skip
    said |= {"edges": {"src": [], "dst": [], "path_ptr": [0], "path_link": []}}
    said |= {"step_ptr": [0], "edge": [], "chunk": [], "reduce": []}
    with pytest.raises(FormatError, match="claims 4194304 chunks on 500 ranks and holds 0 sends"):
        io.loads(json.dumps(said))


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity"])
def test_numbers_that_no_float_holds_are_refused(number):
    """In a table with a checksum too: it is made of the numbers that were read."""
    text = a_table().dumps()
    text = re.sub(r'"seconds":\[[^]]*\]', f'"seconds":[{number}]', text, count=1)
    with pytest.raises(FormatError, match="finite numbers are expected"):
        Table.loads(text)


# ---------------------------------------------------------------------- texts of NCCL


@pytest.mark.parametrize(
    "header",
    ["# size algbw", "# time size algbw", "# sized timed algbw", "# algbw size"],
)
def test_headers_without_what_is_read_are_refused(header):
    text = f"#  Rank  0 Group\n{header}\n 1 2 3\n"
    with pytest.raises(FormatError, match=r"line 2: .*size"):
        nccl_tests.loads(text)


@pytest.mark.parametrize("ranks", [0, -1, None, 8.0, "8"])
@pytest.mark.parametrize("nodes", [0, None, 3])
def test_communicators_that_are_none_are_refused(ranks, nodes):
    for loads in (ncclx.loads_csv, ncclx.loads_json):
        with pytest.raises(TuneError, match="ranks"):
            loads('{"rules": []}', ranks=ranks)
        with pytest.raises(TuneError, match="nodes"):
            loads('{"rules": []}', ranks=8, nodes=nodes)


def test_long_lines_are_read_once():
    with pytest.raises(FormatError, match="7 to 10 columns"):
        ncclx.loads_csv("," * 2_000_000, ranks=8)
    with pytest.raises(FormatError, match="7 to 10 columns"):
        ncclx.loads_csv("[" + "x" * 2_000_000, ranks=8)


# ---------------------------------------------------------------------- HLO


def module(body: str, *others: str) -> str:
    return "HloModule m, num_partitions=8\n\n" + "\n".join(
        [*others, "ENTRY %main (p: f32[4]) -> f32[4] {", "  %p = f32[4] parameter(0)", body, "}"]
    )


def calling(name: str, *called: str) -> str:
    lines = [f"  %c{i} = f32[4] call(%p), to_apply=%{each}" for i, each in enumerate(called)]
    return "\n".join([f"%{name} (p: f32[4]) -> f32[4] {{", *lines, "}"])


def test_computations_that_run_themselves_are_refused():
    for loop in (calling("a", "a"), f"{calling('a', 'b')}\n{calling('b', 'a')}"):
        with pytest.raises(FormatError, match="calls itself"):
            parse(module("  %c = f32[4] call(%p), to_apply=%a", loop))
    body = "  %w = f32[4] while(%p), condition={, body=%main}, body=%main"
    with pytest.raises(FormatError, match="calls itself"):
        parse(module(body))


def test_computations_that_double_are_refused():
    doubled = [calling(f"f{i}", f"f{i + 1}", f"f{i + 1}") for i in range(64)]
    with pytest.raises(FormatError, match="when every call is expanded"):
        parse(module("  %c = f32[4] call(%p), to_apply=%f0", *doubled))


def test_a_computation_that_is_not_there_is_refused():
    with pytest.raises(
        FormatError, match="calls the computation 'nowhere', which it does not contain"
    ):
        summarize_module(parse(module("  %c = f32[4] call(%p), to_apply=%nowhere")))


def test_loops_of_any_length_take_no_memory():
    body = (
        "  %w = f32[4] while(%p), condition=%a, body=%a, "
        'backend_config={"known_trip_count":{"n":"100000000000000"}}'
    )
    inside = "%a (p: f32[4]) -> f32[4] {\n  %c = f32[4]{0} copy(%p)\n}"
    assert summarize_module(parse(module(body, inside))).copies == {16: 10**14}


@pytest.mark.parametrize(
    "groups",
    [
        "[4,2]<=[9]", "[4,2]<=[8]T(1,0)", "[8]<=[8]", "[4,2]<=[2,4]T(0,0)", "{{},{}}",
        "{{0,1},{2}}",
        "[2,2]<=[99999,99999,99999]", "[1,1]<=[" + "1," * 70 + "1]", "{{" + "9" * 5000 + "}}",
        "mesh['x'=2,'y'=4] {'z'}", "mesh['x'=2] {'x','x'}",
        "mesh['x'=2,'y'=4], device_ids=([9]) {'x'}",
        "mesh['x'=0] {'x'}", "x", "{" * 70_000,
    ],
)  # fmt: skip
def test_groups_that_do_not_fit_together_are_refused(groups):
    text = module(f"  %r = f32[4] all-reduce(%p), replica_groups={groups}, to_apply=%p")
    found = parse(text).computations["main"][-1]
    with pytest.raises(FormatError) as caught:
        replica_groups(found, 8)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("pairs", ["{{0,1},{1}}", "{{0,1,2}}", "{{" + "9" * 5000 + ",0}}", "x"])
def test_pairs_that_are_none_are_refused(pairs):
    text = module(f"  %r = f32[4] collective-permute(%p), source_target_pairs={pairs}")
    with pytest.raises(FormatError, match="cannot read the pairs"):
        permuted_pairs(parse(text).computations["main"][-1])


def test_modules_of_too_many_devices_are_refused():
    with pytest.raises(FormatError, match="got 99999999"):
        parse(GPU.replace("num_partitions=8", "num_partitions=99999999"))


# ---------------------------------------------------------------------- the longest of all kinds


def test_long_files_of_nothing_are_refused(tmp_path):
    """An eighth of a megabyte of one character or word, to every reader."""
    for name, kind in kinds(tmp_path).items():
        for unit in (b" ", b"\n", b"{", b"[", b"(", b'"', b"#", b",", b"<!--", b"/*", b"calls={"):
            file = next(iter(kind.sound[0]))

            def repeated(*_, unit=unit):
                return unit * (2**17 // len(unit))

            files = ({**kind.sound[0], file: kind.sound[0][file]},)
            hostile = type(kind)(files, repeated, kind.use, kind.refused)
            outcome = try_mutants(hostile, 1, tmp_path)
            assert outcome.wrong == [], (name, unit)
