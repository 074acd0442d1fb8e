"""MultiTree's schedule tables: the printed ones, round trips, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll import Schedule, synthesize, topologies
from jaxcoll.errors import FormatError
from jaxcoll.io import multitree
from jaxcoll.io.multitree import Entry
from jaxcoll.synth import Direct, MultiTree, Ring
from tests import strategies

# Fig. 5 of the paper, but for one number: the figure has FlowID 1 in the first Gather of
# accelerator 2, which is the root of tree 2 and has parent 3 in tree 1.
PRINTED = Path(__file__).with_name("multitree_figure_5.txt").read_text()


def example() -> Schedule:
    return synthesize(topologies.mesh(2, 2), "all_reduce", MultiTree())


def test_the_printed_tables():
    assert multitree.dumps(example()) == PRINTED


def test_addresses_and_sizes():
    text = multitree.dumps(example(), 4096)
    assert "Op FlowID Parent Children Step StartAddr Size" in text
    assert "Reduce 3 1 nil nil nil nil 1 3072 1024\n" in text
    assert multitree.loads(text)[0][0] == Entry("Reduce", 3, 1, (), 1, 3072, 1024)


def test_idle_steps_are_nops():
    """On a mesh some ranks are idle in some steps (Sec. IV-A)."""
    tables = multitree.tables(synthesize(topologies.mesh(3, 3), "all_reduce", MultiTree()))
    for table in tables:
        steps = [entry.step for entry in table]
        assert sorted(set(steps)) == list(range(1, steps[-1] + 1))
        for entry in table:
            if entry.op == "NOP":
                assert steps.count(entry.step) == 1
                assert (entry.flow, entry.parent, entry.children) == (None, None, ())
    assert any(entry.op == "NOP" for table in tables for entry in table)


def replay(tables: multitree.Tables) -> list[dict[int, int]]:
    """Replays the network interfaces: entries in step, dependencies as the tables give them.

    Returns for every rank how many contributions it holds of each flow.
    """
    n = len(tables)
    sums = [dict.fromkeys(range(n), 1) for _ in range(n)]
    got: dict[tuple[int, int], set[int]] = {}
    arrived = {(rank, rank) for rank in range(n)}
    for step in range(1, 1 + max(entry.step for table in tables for entry in table)):
        now = [(rank, e) for rank, table in enumerate(tables) for e in table if e.step == step]
        sent = []
        for rank, entry in now:
            if entry.flow is None:
                continue
            if entry.op == "Reduce":
                assert got.get((rank, entry.flow), set()) == set(entry.children)
            else:
                assert (rank, entry.flow) in arrived
                assert (entry.parent is None) == (rank == entry.flow)
            sent.append((rank, entry.flow, entry, sums[rank][entry.flow]))
        for rank, flow, entry, amount in sent:
            if entry.op == "Reduce":
                sums[entry.parent][flow] += amount
                sums[rank][flow] = 0
                got.setdefault((entry.parent, flow), set()).add(rank)
            else:
                assert amount == n
                for child in entry.children:
                    sums[child][flow] = amount
                    arrived.add((child, flow))
    return sums


@given(strategies.topologies(max_ranks=9, switches=True))
def test_tables_alone_carry_the_all_reduce(topology):
    schedule = synthesize(topology, "all_reduce", MultiTree())
    sums = replay(multitree.tables(schedule))
    assert sums == [dict.fromkeys(range(topology.num_ranks), topology.num_ranks)] * len(sums)


@given(strategies.grids(max_ranks=12), st.sampled_from([MultiTree(), Ring(), Direct()]))
def test_text_comes_back(topology, synthesizer):
    if topology.num_ranks == 1:
        return
    kinds = ("all_reduce", "all_gather", "reduce_scatter")
    for kind in kinds:
        try:
            tables = multitree.tables(synthesize(topology, kind, synthesizer))
        except FormatError:
            continue
        schedule = synthesize(topology, kind, synthesizer)
        assert multitree.loads(multitree.dumps(schedule)) == tables
        nbytes = 12 * topology.num_ranks
        assert multitree.loads(multitree.dumps(schedule, nbytes)) == multitree.tables(
            schedule, nbytes
        )


def test_files(tmp_path):
    multitree.save(tmp_path / "tables.txt", example(), 64)
    assert multitree.load(tmp_path / "tables.txt") == multitree.tables(example(), 64)
    (tmp_path / "bad.txt").write_text("Accelerator 1\n")
    with pytest.raises(FormatError, match=r"bad\.txt: line 1"):
        multitree.load(tmp_path / "bad.txt")


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: synthesize(topologies.ring(3), "broadcast", MultiTree()), "got broadcast"),
        (lambda: synthesize(topologies.ring(3), "all_gather", MultiTree(), chunks=2), "chunks=1"),
    ],
)
def test_schedules_that_have_no_tables(make, match):
    with pytest.raises(FormatError, match=match):
        multitree.tables(make())


def test_bytes_that_do_not_divide():
    for nbytes in (6, 0, -8, "many"):
        with pytest.raises(FormatError, match="bytes"):
            multitree.tables(example(), nbytes)  # type: ignore[arg-type]
    with pytest.raises(FormatError, match="2 children in one entry, more than 1 slots"):
        multitree.dumps(example(), slots=1)


HEAD = "Accelerator 0\nOp FlowID Parent Children Step\n"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("Reduce 0 0 nil 1", "line 1: expected a rank and headings first"),
        ("Accelerator 1", "expected 'Accelerator 0'"),
        ("Accelerator 0\nGather 0 nil nil 1", "line 2: expected a rank and headings first"),
        (HEAD + "Send 0 nil nil 1", "line 3: expected an op"),
        (HEAD + "Gather 0", "line 3: expected an op"),
        (HEAD + "Gather 0 nil nil nil", "line 3: expected an op"),
        (HEAD + "Gather 0 nil nil 0", "line 3: expected an op"),
        (HEAD + "Gather 0 nil -1 1", "expected a number or nil, got '-1'"),
        (HEAD + "Gather 0 nil \u0663 1", "expected a number or nil"),
        (HEAD + "Gather nil nil nil 1", "must name its flow"),
        (HEAD + "Reduce 0 nil nil 1", "a Reduce also its parent"),
        (HEAD + "NOP 0 nil nil 1", "a NOP neither"),
        (HEAD + "Gather 0 nil 3 1", "there are 1 ranks"),
        (HEAD + "NOP nil nil nil 2\nNOP nil nil nil 1", "line 4: steps of a table must rise"),
        (3, "expected text, got int"),
    ],
)
def test_bad_text_is_refused(text, match):
    with pytest.raises(FormatError, match=match):
        multitree.loads(text)


def test_no_tables_are_no_lines():
    assert multitree.loads("\n") == ()
