"""Chakra traces: replayed by other code in the schedule's time, read back, decoded by protobuf."""

from __future__ import annotations

import heapq
import json
from collections import defaultdict
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll.errors import FormatError, ScheduleError
from jaxcoll.io import chakra
from tests.cli.calls import called, refused

RING = jc.topologies.ring(4)
NETWORKS = {
    "ring": RING,
    "torus": jc.topologies.torus(2, 3, alpha=1e-6, bandwidth=50e9),
    "switch": jc.topologies.switch(4),
    "hosts": jc.topologies.nvswitch_hosts((3, 3), inside=300e9, network=50e9),
    "cube": jc.topologies.hypercube(3),
}


def replayed(files: tuple[bytes, ...], network: jc.Topology) -> float:
    """Seconds until the last receive, by nothing but nodes and links.

    A send starts when all that it waits for has ended, crosses its links one after the other, first
    come, first served, and ends when it has left the first; its receive ends where it arrives.
    """
    nodes = {(rank, n.id): n for rank, data in enumerate(files) for n in chakra.loads(data)[1]}
    receives: dict[tuple, tuple[int, int]] = {
        (n.said["comm_tag"], n.said["comm_src"], rank, n.said["comm_size"]): (rank, id_)
        for (rank, id_), n in nodes.items() if n.type == chakra.RECEIVE
    }  # fmt: skip
    assert 2 * len(receives) == len(nodes)
    followers, waits = defaultdict(list), {}
    ready: defaultdict[tuple[int, int], float] = defaultdict(float)
    for (rank, id_), node in nodes.items():
        waits[rank, id_] = len(set(node.after))
        for before in set(node.after):
            followers[rank, before].append((rank, id_))
    free: defaultdict[int, float] = defaultdict(float)
    heap = [(0.0, key[1], 0, key[0]) for key, n in nodes.items()
            if n.type == chakra.SEND and not waits[key]]  # fmt: skip
    heapq.heapify(heap)
    ended: dict[tuple[int, int], float] = {}

    def end(key: tuple[int, int], time: float) -> None:
        ended[key] = time
        for other in followers[key]:
            waits[other] -= 1
            ready[other] = max(ready[other], time)
            if not waits[other]:
                heapq.heappush(heap, (ready[other], other[1], 0, other[0]))

    while heap:
        now, id_, hop, rank = heapq.heappop(heap)
        said = nodes[rank, id_].said
        path = [int(link) for link in str(said["jaxcoll_links"]).split(",")]
        link = path[hop]
        left = max(now, free[link]) + int(said["comm_size"]) / float(network.bandwidth[link])
        free[link] = left
        arrives = left + float(network.alpha[link])
        if hop == 0:
            end((rank, id_), left)
        if hop < len(path) - 1:
            heapq.heappush(heap, (arrives, id_, hop + 1, rank))
        else:
            key = said["comm_tag"], said["comm_src"], said["comm_dst"], said["comm_size"]
            end(receives[key], arrives)
    assert len(ended) == len(nodes)
    return max(ended.values(), default=0.0)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_traces_take_the_time_of_the_schedule(data):
    network = NETWORKS[data.draw(st.sampled_from(sorted(NETWORKS)))]
    kind = data.draw(st.sampled_from(sorted(chakra.KEYS)))
    names = ["direct", "tacos"] if kind == "all_to_all" else ["ring", "tacos", "forestcoll"]
    name, chunks = data.draw(st.sampled_from(names)), data.draw(st.integers(1, 3))
    schedule = jc.synthesize(network, kind, name, chunks=chunks)
    nbytes = data.draw(st.sampled_from([2**10 + 1, 2**20 * 45, 10**9]))
    timeline = jc.simulate(schedule, nbytes)
    files = chakra.dumps(timeline)
    assert replayed(files, network) == pytest.approx(timeline.time, rel=0.01)
    again = chakra.lift(files, network)
    assert again.collective == schedule.collective
    assert jc.simulate(again, nbytes).exact_time == timeline.exact_time
    assert chakra.dumps(jc.simulate(again, nbytes)) == files


def test_whole_bytes_are_timed_exactly():
    for name, network in NETWORKS.items():
        timeline = jc.simulate(jc.synthesize(network, "all_reduce", "tacos"), 2**20 * 720)
        found = replayed(chakra.dumps(timeline), network)
        assert found == pytest.approx(timeline.time, rel=1e-9), name


def schema():
    """The messages of the schema that are written, by protobuf's own encoder."""
    descriptor = pytest.importorskip("google.protobuf.descriptor_pb2")
    pool = pytest.importorskip("google.protobuf.descriptor_pool").DescriptorPool()
    factory = pytest.importorskip("google.protobuf.message_factory")
    file = descriptor.FileDescriptorProto(name="et.proto", package="et", syntax="proto3")
    types = {"string": 9, "uint64": 4, "int64": 3, "int32": 5, "bool": 8, "message": 11}
    for message, fields in {
        "Attribute": [("name", 1, "string", 1), ("int32_val", 7, "int32", 1),
                      ("int64_val", 9, "int64", 1), ("bool_val", 27, "bool", 1),
                      ("string_val", 29, "string", 1)],
        "Metadata": [("version", 1, "string", 1), ("attr", 2, "message", 3)],
        "Node": [("id", 1, "uint64", 1), ("name", 2, "string", 1), ("type", 3, "int32", 1),
                 ("ctrl_deps", 4, "uint64", 3), ("data_deps", 5, "uint64", 3),
                 ("attr", 10, "message", 3)],
    }.items():  # fmt: skip
        made = file.message_type.add(name=message)
        for name, number, kind, label in fields:
            field = made.field.add(name=name, number=number, type=types[kind], label=label)
            if kind == "message":
                field.type_name = ".et.Attribute"
    pool.Add(file)
    return [factory.GetMessageClass(pool.FindMessageTypeByName(f"et.{m}"))
            for m in ("Metadata", "Node")]  # fmt: skip


def test_protobuf_reads_what_is_written():
    metadata, node = schema()
    timeline = jc.simulate(jc.synthesize(RING, "all_gather", "ring", chunks=2), 2**20)
    for data in chakra.dumps(timeline):
        rows = [row for row, _ in chakra._messages(data)]
        begin = metadata.FromString(rows[0])
        assert begin.version == "0.0.4"
        assert begin.SerializeToString() == rows[0]
        for row, ours in zip(rows[1:], chakra.loads(data)[1], strict=True):
            read = node.FromString(row)
            assert (read.id, read.name, read.type) == (ours.id, ours.name, ours.type)
            assert (*read.ctrl_deps, *read.data_deps) == ours.after
            sizes = {a.name: a.int64_val for a in read.attr}
            assert sizes["comm_size"] == ours.said["comm_size"]
            tags = {a.name: a.int32_val for a in read.attr}
            assert tags["comm_dst"] == ours.said["comm_dst"]
        # Other encoders may write fields of a node in any order, or one id at a time.
        again = b"".join(chakra._framed(node.FromString(r).SerializeToString()) for r in rows[1:])
        assert chakra.loads(chakra._framed(rows[0]) + again) == chakra.loads(data)


def test_tags_tell_equal_messages_of_a_pair_apart():
    timeline = jc.simulate(jc.synthesize(RING, "all_reduce", "ring", chunks=4), 2**20)
    for rank, data in enumerate(chakra.dumps(timeline)):
        sends = [n.said for n in chakra.loads(data)[1] if n.type == chakra.SEND]
        keys = {(said["comm_dst"], said["comm_tag"]) for said in sends}
        assert len(keys) == len(sends) > 0
        assert {said["comm_src"] for said in sends} == {rank}


def test_files_and_the_system_that_names_them(tmp_path: Path):
    schedule = jc.synthesize(RING, "all_reduce", "ring")
    chakra.save(tmp_path / "ring", jc.simulate(schedule, 2**20))
    assert json.loads((tmp_path / "ring.json").read_text())["all-reduce-implementation-custom"] == [
        "ring"
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "ring.0.et", "ring.1.et", "ring.2.et", "ring.3.et", "ring.json"
    ]  # fmt: skip
    again = chakra.load(tmp_path / "ring", RING)
    assert jc.simulate(again, 2**20).time == jc.simulate(schedule, 2**20).time
    with pytest.raises(FormatError, match="more than the 99 bytes"):
        chakra.load(tmp_path / "ring", RING, max_bytes=99)
    with pytest.raises(OSError, match="No such file"):
        chakra.load(tmp_path / "none", RING)


def test_what_astra_sim_does_not_run_is_refused():
    for kind in ("broadcast", "gather"):
        timeline = jc.simulate(jc.synthesize(RING, kind), 2**20)
        with pytest.raises(FormatError, match="as custom collectives, not"):
            chakra.dumps(timeline)
    groups = jc.Collective("all_gather", 4, groups=((0, 1), (2, 3)))
    with pytest.raises(FormatError, match="of all ranks"):
        chakra.dumps(jc.simulate(jc.synthesize(RING, groups), 2**20))


GOOD = chakra.dumps(jc.simulate(jc.synthesize(RING, "all_gather", "ring"), 2**20))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (GOOD[:3], "3 traces, .* has 4 ranks"),
        ((b"", *GOOD[1:]), "the file is empty"),
        ((GOOD[0][:-1], *GOOD[1:]), "of [0-9]+ bytes is cut short"),
        ((b"\xff" * 12, *GOOD[1:]), "more than ten bytes"),
        ((GOOD[0] + GOOD[0][GOOD[0][0] + 1 :],) * 4, "the same id|cut short|no node"),
        ((b"\x07\x0a\x05" + b"0.0.4", *GOOD[1:]), "another tool wrote them"),
        ((GOOD[0].replace(b"jaxcoll_links", b"jaxcoll_lines"), *GOOD[1:]), "does not say its step"),
    ],
)
def test_files_that_are_no_such_traces_are_refused(files: tuple[bytes, ...], message: str):
    with pytest.raises(FormatError, match=message):
        chakra.lift(files, RING)


def test_traces_that_lack_a_message_are_not_the_collective():
    begin, nodes = chakra.loads(GOOD[0])
    assert isinstance(begin["jaxcoll_collective"], str)
    rows = [row for row, _ in chakra._messages(GOOD[0])]
    send = next(i for i, n in enumerate(nodes) if n.type == chakra.SEND)
    less = b"".join(chakra._framed(row) for i, row in enumerate(rows) if i != send + 1)
    with pytest.raises(ScheduleError):
        chakra.lift((less, *GOOD[1:]), RING)


def test_on_the_command_line_written_and_read_back(capsys, tmp_path: Path):
    jc.io.save(tmp_path / "s.json", jc.synthesize(RING, "all_reduce", "ring"))
    prefix = tmp_path / "ring"
    code, _, _ = called(
        capsys, "simulate", tmp_path / "s.json", "--size", "1MiB", "--chakra", prefix
    )
    assert code == 0
    network = tmp_path / "n.json"
    jc.io.save(network, RING)
    back = "convert", tmp_path / "ring.0.et", tmp_path / "t.json"
    assert called(capsys, *back, "--network", network)[0] == 0
    assert called(capsys, "verify", tmp_path / "t.json")[0] == 0
    assert "does not name the network" in refused(capsys, *back)
    jc.io.save(tmp_path / "b.json", jc.synthesize(RING, "broadcast"))
    err = refused(capsys, "simulate", tmp_path / "b.json", "--chakra", prefix)
    assert "as custom collectives" in err


def test_sizes_are_whole_bytes_rounded_up():
    timeline = jc.simulate(jc.synthesize(RING, "all_gather", "ring"), Fraction(10))
    sizes = {n.said["comm_size"] for n in chakra.loads(chakra.dumps(timeline)[0])[1]}
    assert sizes == {2, 3}  # of 1.25 bytes, and of two chunks together
