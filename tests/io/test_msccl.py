"""MSCCL programs: round trips, refusals, and programs that stop."""

from __future__ import annotations

import dataclasses
import random
import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll.collective import Collective
from jaxcoll.errors import FormatError, ScheduleError
from jaxcoll.io import msccl
from jaxcoll.prove import prove_text
from jaxcoll.synth import Bfb
from jaxcoll.topologies import generative as gen
from tests.io.mutations import mutated_bytes, refuses

NETWORKS = [
    gen.complete(3),
    gen.complete_bipartite(4),
    gen.torus(4, 4),
    gen.line_graph(gen.complete_bipartite(2)),
    gen.unidirectional_ring(2, 4),
    gen.circulant(16, (3, 4)),
    gen.generalized_kautz(2, 9),
]
KINDS = ("all_gather", "reduce_scatter", "all_reduce")
# Out of place, passing on what arrives: written by hand after the format's description.
RING = (
    '<algo name="ring" proto="{proto}" nchannels="1" nchunksperloop="{chunks}" ngpus="3" '
    'coll="allgather" inplace="0">\n{gpus}</algo>\n'
)


def ring_program(chunks: int, proto: str = "Simple") -> str:
    """An all_gather around a ring of 3 ranks, ``chunks`` of a shard to an instruction."""
    tail = 'depid="-1" deps="-1" hasdep="0"/>'
    gpus = ""
    for rank in range(3):
        mine, before, two = (chunks * ((rank - away) % 3) for away in range(3))
        rows = [
            ("s", "i", 0, "o", mine),
            ("rcs", "o", before, "o", before),
            ("r", "o", two, "o", two),
        ]
        steps = "".join(
            f'<step s="{s}" type="{t}" srcbuf="{b}" srcoff="{o}" dstbuf="{c}" dstoff="{p}" '
            f'cnt="{chunks}" {tail}\n'
            for s, (t, b, o, c, p) in enumerate(rows)
        )
        copy = (
            f'<step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="{mine}" '
            f'cnt="{chunks}" {tail}\n'
        )
        gpus += (
            f'<gpu id="{rank}" i_chunks="{chunks}" o_chunks="{3 * chunks}" s_chunks="0">\n'
            f'<tb id="0" send="{(rank + 1) % 3}" recv="{(rank - 1) % 3}" chan="0">\n{steps}</tb>\n'
            f'<tb id="1" send="-1" recv="-1" chan="0">\n{copy}</tb>\n</gpu>\n'
        )
    return RING.format(proto=proto, chunks=3 * chunks, gpus=gpus)


def sends(schedule: jc.Schedule) -> list[tuple[int, ...]]:
    columns = (schedule.step, schedule.src, schedule.dst, schedule.chunk, schedule.reduce)
    return sorted(zip(*(np.asarray(c, int).tolist() for c in columns), strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("digraph", NETWORKS, ids=str)
def test_bfb_schedules_come_back(digraph, kind: str, tmp_path):
    topology = digraph.topology(1e-6, 25e9)
    try:
        schedule = jc.synthesize(topology, kind, synthesizer="bfb", chunks=Bfb.chunks(topology))
    except jc.errors.CollectiveError:
        pytest.skip("not one schedule for both halves")
    msccl.save(tmp_path / "program.xml", schedule)
    back = msccl.load(tmp_path / "program.xml", topology)
    jc.verify(back)
    assert back.topology == topology
    assert sends(back) == sends(schedule)
    assert back.collective == schedule.collective
    used = np.asarray(back.edges.path_link)
    assert len(np.unique(used)) == topology.num_links  # parallel links are channels


@settings(max_examples=15)
@given(st.data())
def test_other_schedules_come_back(data):
    """And as sound ones without the steps that files of others do not name."""
    topology = jc.topologies.torus(data.draw(st.integers(2, 3)), data.draw(st.integers(2, 4)))
    kind = data.draw(st.sampled_from(KINDS))
    name = data.draw(st.sampled_from(["ring", "bfb"]))
    schedule = jc.synthesize(topology, kind, synthesizer=name, seed=data.draw(st.integers(0, 9)))
    text = msccl.dumps(msccl.lower(schedule, protocol=data.draw(st.sampled_from(["Simple", "LL"]))))
    assert sends(msccl.lift(msccl.loads(text), topology)) == sends(schedule)
    others = msccl.lift(msccl.loads(re.sub(' at="[0-9]+"', "", text)), topology)
    jc.verify(others)
    assert others.num_steps <= schedule.num_steps
    assert sorted(s[1:] for s in sends(others)) == sorted(s[1:] for s in sends(schedule))


def test_a_program_is_the_same_after_its_text():
    schedule = jc.synthesize(jc.topologies.ring(4), "all_reduce", synthesizer="ring")
    program = msccl.lower(schedule, name="ring4", protocol="LL128")
    assert msccl.loads(msccl.dumps(program)) == program
    scatter = jc.synthesize(jc.topologies.ring(4), "reduce_scatter", synthesizer="ring")
    text = {d: msccl.dumps(msccl.lower(scatter), dialect=d) for d in ("msccl", "azure")}
    assert 'coll="reduce_scatter"' in text["msccl"]
    assert 'coll="reducescatter"' in text["azure"]
    assert msccl.loads(text["msccl"]) == msccl.loads(text["azure"])


def accesses(program: msccl.Program, rank: int):
    """(chunk, block, instruction, writes) of the accesses of a rank."""
    for b, block in enumerate(program.ranks[rank]):
        for i, each in enumerate(block.instructions):
            for chunk in range(each.src[1], each.src[1] + each.count):
                yield chunk, b, i, each.type != "s"


def happens_before(program: msccl.Program) -> dict[tuple[int, int, int], set[tuple[int, int, int]]]:
    """What must have ended before each instruction: blocks' order, waits and messages."""
    before: dict[tuple[int, int, int], set] = {}
    ends: dict[tuple, list] = {}
    for rank, blocks in enumerate(program.ranks):
        for b, block in enumerate(blocks):
            for i, each in enumerate(block.instructions):
                here = before.setdefault((rank, b, i), set())
                if i:
                    here.add((rank, b, i - 1))
                if each.after is not None:
                    here.add((rank, *each.after))
                if each.type == "s":
                    ends.setdefault((rank, block.send, block.channel), []).append((rank, b, i))
    arrived: dict[tuple, int] = {}
    for rank, blocks in enumerate(program.ranks):
        for b, block in enumerate(blocks):
            for i, each in enumerate(block.instructions):
                if each.type in ("r", "rrc"):
                    wire = (block.receive, rank, block.channel)
                    before[rank, b, i].add(ends[wire][arrived.get(wire, 0)])
                    arrived[wire] = arrived.get(wire, 0) + 1
    closed: dict[tuple[int, int, int], set] = {}

    def close(place):
        if place not in closed:
            closed[place] = set()
            for earlier in before[place]:
                closed[place] |= {earlier} | close(earlier)
        return closed[place]

    for place in before:
        close(place)
    return closed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("network", [(3, 3), (2, 4)])
def test_no_two_blocks_race_for_a_chunk(network, kind: str):
    topology = jc.topologies.torus(*network)
    chunks = Bfb.chunks(topology)
    program = msccl.lower(jc.synthesize(topology, kind, synthesizer="bfb", chunks=chunks))
    order = happens_before(program)
    for rank in range(topology.num_ranks):
        by_chunk: dict[int, list] = {}
        for chunk, b, i, writes in accesses(program, rank):
            by_chunk.setdefault(chunk, []).append((b, i, writes))
        for same in by_chunk.values():
            for b, i, writes in same:
                for c, j, also in same:
                    if (b, i) < (c, j) and (writes or also):
                        first, second = (rank, b, i), (rank, c, j)
                        assert first in order[second] or second in order[first]


def test_awaited_instructions_and_no_others_are_marked():
    topology = gen.torus(3, 3).topology()
    program = msccl.lower(jc.synthesize(topology, "all_reduce", synthesizer="bfb"))
    for blocks in program.ranks:
        waited = {each.after for block in blocks for each in block.instructions if each.after}
        marked = {
            (b, i)
            for b, block in enumerate(blocks)
            for i, each in enumerate(block.instructions)
            if each.awaited
        }
        assert waited == marked
        assert not any(
            each.awaited for b in blocks for each in b.instructions if each.type == "nop"
        )


def test_programs_of_others_are_read():
    """Out of place, and receiving and passing on in one instruction."""
    topology = gen.unidirectional_ring(1, 3).topology()
    schedule = msccl.lift(msccl.loads(ring_program(1)), topology)
    assert schedule.collective == Collective("all_gather", 3)
    assert (schedule.num_steps, schedule.num_sends) == (2, 6)
    assert msccl.lift(msccl.loads(ring_program(2, "LL")), topology).num_sends == 12


def test_a_program_that_fills_its_connections_stops():
    """Each rank sends 3 chunks before it receives, and a connection holds 2."""
    with pytest.raises(FormatError, match=r"stops: instruction 0 of block 0 .* 2 messages"):
        msccl.lift(msccl.loads(ring_program(3)), gen.unidirectional_ring(1, 3).topology())


def edited(program: msccl.Program, **changes: object) -> msccl.Program:
    """The program with the first receive of rank 0 changed."""
    ranks = [list(blocks) for blocks in program.ranks]
    for b, block in enumerate(ranks[0]):
        if block.receive is not None:
            rows = list(block.instructions)
            rows[0] = dataclasses.replace(rows[0], **cast(Any, changes))
            ranks[0][b] = dataclasses.replace(block, instructions=tuple(rows))
            break
    return dataclasses.replace(program, ranks=tuple(map(tuple, ranks)))


def test_programs_of_another_result_are_refused():
    topology = jc.topologies.ring(4)
    program = msccl.lower(jc.synthesize(topology, "all_reduce", synthesizer="ring"))
    with pytest.raises(ScheduleError):
        msccl.lift(edited(program, type="r"), topology)
    with pytest.raises(FormatError, match="adds chunk"):
        msccl.lift(edited(program, dst=("i", 2), src=("i", 2)), topology)
    with pytest.raises(FormatError, match="stops"):
        msccl.lift(edited(program, after=(0, 200)), topology)
    with pytest.raises(FormatError, match="for 4 ranks"):
        msccl.lift(program, jc.topologies.ring(5))


test_bad_programs_are_refused = refuses(msccl.loads, FormatError, ring_program(1), "msccl")


NUMBER = re.compile(rb'"(-?[0-9]+)"')


def mutated(data: bytes, dice: random.Random) -> bytes:
    """Some numbers replaced, a line dropped or repeated, or bytes changed."""
    way = dice.randrange(4)
    if way == 0:
        return mutated_bytes(data, dice)
    if way == 1:
        lines = data.split(b"\n")
        at = dice.randrange(len(lines))
        return b"\n".join(lines[:at] + lines[at : at + 1] * dice.choice((0, 2)) + lines[at + 1 :])
    for _ in range(dice.randint(1, 2)):
        found = dice.choice(list(NUMBER.finditer(data)))
        other = dice.choice((b"-1", b"0", b"1", b"2", b"3", b"71", b"99999"))
        data = data[: found.start(1)] + other + data[found.end(1) :]
    return data


def test_mutated_programs_raise_named_errors_only(tmp_path):
    topology = jc.topologies.ring(4)
    schedule = jc.synthesize(topology, "all_reduce", synthesizer="ring")
    good = msccl.dumps(msccl.lower(schedule)).encode()
    read = 0
    for seed in range(300):
        (tmp_path / "bad.xml").write_bytes(mutated(good, random.Random(seed)))
        try:
            jc.verify(msccl.load(tmp_path / "bad.xml", topology))
            read += 1
        except (FormatError, ScheduleError):
            pass
    assert 0 < read < 300


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: msccl.lower(s, protocol="Slow"), "protocol"),
        (lambda s: msccl.lower(s, name="a b"), "name"),
        (lambda s: msccl.dumps(msccl.lower(s), dialect="other"), "dialect"),
        (lambda s: msccl.dumps(msccl.lower(s), max_bytes=0), "max_bytes"),
    ],
)
def test_bad_arguments_are_refused(call, message: str):
    schedule = jc.synthesize(jc.topologies.ring(4), "all_gather", synthesizer="ring")
    with pytest.raises(FormatError, match=message):
        call(schedule)


def test_schedules_that_no_program_holds_are_refused():
    three = jc.topologies.fully_connected(3)
    with pytest.raises(FormatError, match="all_to_all"):
        msccl.lower(jc.synthesize(three, "all_to_all", synthesizer="direct"))
    full = jc.topologies.fully_connected(110)
    crowded = Bfb().synthesize(full, Collective("all_gather", 110))
    with pytest.raises(FormatError, match="218 blocks, and msccl takes at most 216"):
        msccl.lower(crowded)
    assert len(msccl.lower(crowded, dialect="azure").ranks[0]) == 218


@pytest.mark.parametrize("kind", KINDS)
def test_an_edge_over_the_limit_has_channels_in_a_row(kind: str):
    """The order on the edge and the schedule come back, and the checker proves the program."""
    topology = jc.topologies.ring(3)
    schedule = jc.synthesize(topology, kind, "tacos", chunks=300)
    text = msccl.dumps(schedule)
    assert prove_text(text, kind, 3, runtime="msccl").messages == schedule.num_sends
    assert 'nchannels="1"' not in text
    assert msccl.lift(msccl.loads(text), topology) == at_one_edge(schedule)


def at_one_edge(schedule: jc.Schedule) -> jc.Schedule:
    """The schedule with the provenance of a program."""
    return schedule.with_provenance(jc.schedule.Provenance("msccl", {"name": "jaxcoll"}))


@pytest.mark.parametrize("name", ["forestcoll", "tacos", "joint_trees", "hierarchical_ring"])
def test_order_within_steps_and_paths_come_back(name: str):
    topology = jc.topologies.nvswitch_hosts((3, 3), inside=300e9, network=50e9)
    schedule = jc.synthesize(topology, "all_reduce", name, chunks=4)
    again = msccl.lift(msccl.loads(msccl.dumps(schedule)), topology)
    assert jc.simulate(again, 2**20).time == jc.simulate(schedule, 2**20).time
    assert again == at_one_edge(schedule)


def test_numbers_that_are_too_large_are_named():
    ring = jc.topologies.ring(4)
    schedule = jc.synthesize(ring, "all_reduce", "ring", chunks=800)
    with pytest.raises(FormatError, match=r"rank 0 would read [0-9]{4} or more elements"):
        msccl.dumps(schedule)
    with pytest.raises(FormatError, match="name has 300 characters"):
        msccl.lower(schedule, name="a" * 300)
    with pytest.raises(FormatError, match=r"RCCL removed its MSCCL runtime after ROCm 7\.2"):
        msccl.dumps(schedule, dialect="rccl")
    program = msccl.lower(jc.synthesize(ring, "all_gather", "ring"))
    many = dataclasses.replace(
        program, ranks=tuple(tuple(dataclasses.replace(b, channel=40) for b in blocks)
                             for blocks in program.ranks)
    )  # fmt: skip
    with pytest.raises(FormatError, match="41 channels, and msccl takes at most 32"):
        msccl.dumps(many)


def test_a_schedule_for_a_runtime_has_as_many_chunks_as_fit():
    ring = jc.topologies.ring(4)
    made = jc.io.synthesize_for(ring, "all_reduce", "ring", for_runtime="azure", nbytes=1e9)
    assert prove_text(msccl.dumps(made, dialect="azure"), runtime="azure").ranks == 4
    with pytest.raises(FormatError, match="elements"):
        jc.io.synthesize_for(ring, "all_reduce", "ring", for_runtime="msccl", chunks=800)
    with pytest.raises(FormatError, match="for_runtime"):
        jc.io.synthesize_for(ring, "all_reduce", for_runtime="nccl")


def test_what_no_runtime_reads_is_refused(tmp_path: Path):
    rows = ring_program(1)
    step = next(line for line in rows.splitlines() if "<step" in line)
    with pytest.raises(FormatError, match="gpu 0 has 302 instructions in a block"):
        msccl.loads(rows.replace(step, f"{step}\n" * 300, 1))
    with pytest.raises(FormatError, match="<tb>: chan"):
        msccl.loads(rows.replace('chan="0"', 'chan="1"', 1))
    with pytest.raises(FormatError, match="longer than the 255 characters"):
        msccl.loads(rows.replace('name="ring"', f'name="{"a" * 300}"'))
    with pytest.raises(FormatError, match="nchannels"):
        msccl.loads(rows.replace('nchannels="1"', 'nchannels="129"'))
    with pytest.raises(FormatError, match="links of <tb>"):
        msccl.loads(rows.replace('chan="0"', 'chan="0" links="a"', 1))
    schedule = jc.synthesize(jc.topologies.ring(4), "all_gather", "ring")
    msccl.save(tmp_path / "a.xml", schedule, dialect="azure", max_bytes=2**20)
    assert 'maxBytes="1048576"' in (tmp_path / "a.xml").read_text()


def test_files_are_written_whole(tmp_path: Path):
    with pytest.raises(OSError, match="No such file"):
        msccl.load(tmp_path / "none.xml", jc.topologies.ring(4))


def test_a_schedule_is_taken_for_its_program():
    schedule = jc.synthesize(jc.topologies.ring(4), "all_gather", synthesizer="ring")
    assert msccl.dumps(schedule) == msccl.dumps(msccl.lower(schedule))
    with pytest.raises(FormatError, match="program must be a Program"):
        msccl.dumps(schedule.collective)  # type: ignore[arg-type]
