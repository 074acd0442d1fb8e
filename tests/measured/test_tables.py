"""Measured tables: what ships is sound, and rows that are not are refused by name."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import jaxcoll as jc
from jaxcoll.errors import FormatError
from jaxcoll.io import nvidia_smi
from jaxcoll.kinds import kind_of
from jaxcoll.measured import MACHINES, Curve, Table, machine_like, machine_of

TABLES = {table.name: table for table in jc.measured.tables()}


def column(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


def curve(**changes) -> Curve:
    """An all_gather of one H100 host, as it might be measured."""
    given = {
        "machine": "h100-host", "collective": "all_gather", "ranks": 8,
        "nbytes": column(2**20, 2**24, 2**30), "ns": column(31_000, 82_000, 2_730_000),
    }  # fmt: skip
    return Curve(**(given | changes))


def table(*curves: Curve) -> Table:
    texts = ("a", "b", "c", "MIT", "", "NCCL", "2026", "nccl-tests")
    return Table(*texts, curves=curves)


def test_what_ships_is_what_was_published():
    rows = {name: each.rows for name, each in TABLES.items()}
    assert rows == {
        "abci-a100": 120, "azure-a100": 24, "azure-gb200": 24, "azure-h100": 24, "azure-h200": 24,
        "coreweave-gb200": 5, "fugaku": 3227, "gcp-h100": 31, "marin-tpu": 4, "nebius-h100": 4,
        "oci-h100": 2, "tpu-recipes": 1, "xla-gpu": 5055,
    }  # fmt: skip
    for each in TABLES.values():
        stated = (each.source, each.licence, each.software, each.date, each.method)
        assert all(stated), each
    # In the wheel's table: 229968237690 bytes per second for 2 GiB; in PICO's 14,316.33 us.
    reduced = seconds("h100-host", "all_reduce", 8, 2**31, "f32")
    assert reduced == pytest.approx(2**31 / 229968237690, abs=1e-9)
    (found,) = [
        dict(zip(each.nbytes.tolist(), each.ns.tolist(), strict=True))[2**29]
        for _, each in jc.measured.curves_of("fugaku-4x4x4", "all_gather")
        if each.algorithm == "default-default"
    ]
    assert found == 14_316_330


def seconds(machine: str, kind: str, ranks: int, nbytes: int, dtype: str) -> float:
    (found,) = [
        float(each.seconds[each.nbytes == nbytes][0])
        for _, each in jc.measured.curves_of(machine, kind)
        if (each.ranks, each.dtype) == (ranks, dtype)
    ]
    return found


def test_every_machine_has_times_and_a_network():
    measured = {each.machine for table in TABLES.values() for each in table.curves}
    assert measured == set(MACHINES)
    for machine in MACHINES.values():
        assert machine.topology().num_ranks == machine.most
        assert machine_like(machine.topology()) is not None


def test_a_network_is_known_again():
    found = machine_like(jc.topologies.dgx_h100(2))
    assert found is not None
    assert (found[0].name, found[1]) == ("h100-2-hosts", 16)
    # Links of other speeds are of another machine.
    assert machine_like(jc.topologies.dgx_h100(2, network=25e9)) == (
        machine_of("a3-mega-2-hosts"), 16
    )  # fmt: skip
    assert machine_like(jc.topologies.ring(8)) is None


def test_hosts_read_from_a_file_are_the_machine_that_they_are():
    """Files name every card: it belongs to the link of the only rank that uses it."""
    joined = tuple(tuple("X" if a == b else "NV18" for b in range(8)) for a in range(8))

    def table(ranks_of_a_card: int) -> nvidia_smi.Connections:
        near = {
            f"NIC{nic}": tuple(
                "PXB" if gpu // ranks_of_a_card == nic else "SYS" for gpu in range(8)
            )
            for nic in range(8 // ranks_of_a_card)
        }
        return nvidia_smi.Connections(8, joined, near)

    for hosts, name in ((1, "h100-host"), (2, "h100-2-hosts")):
        made = nvidia_smi.topology(table(1), gpu="h100", hosts=hosts, network=50e9)
        found = machine_like(made)
        assert found is not None
        assert found[0].name == name
    slow = nvidia_smi.topology(table(1), gpu="h100", hosts=2, network=25e9)
    assert (machine_like(slow) or (None,))[0] == machine_of("a3-mega-2-hosts")
    # A card that two ranks share is a bottleneck, and no part of a link.
    halved = nvidia_smi.topology(table(2), gpu="h100", hosts=2, network=50e9)
    assert machine_like(halved) is None
    # Without switches that copy and add it is another machine.
    assert machine_like(jc.topologies.dgx_h100(2, nvls=False)) is None


def _measured(name: str) -> set[tuple[str, str]]:
    return {(table.name, each.collective) for table, each in jc.measured.curves_of(name)}


def test_no_measured_time_beats_the_bound():
    """Whole machines; sizes of which a latency is a small part, so that data sheets count alone."""
    for name, machine in MACHINES.items():
        network = machine.topology()
        fastest: dict[tuple[str, int], float] = {}
        for _, each in jc.measured.curves_of(name):
            is_whole = each.ranks == network.num_ranks and each.collective != jc.measured.PERMUTE
            for size, took in zip(each.nbytes.tolist(), each.seconds.tolist(), strict=True):
                if is_whole and size >= min(2**29, each.nbytes[-1]):
                    key = each.collective, size
                    fastest[key] = min(took, fastest.get(key, took))
        only_permutes = {kind for _, kind in _measured(name)} == {jc.measured.PERMUTE}
        assert bool(fastest) != only_permutes
        for (kind, size), took in fastest.items():
            root = 0 if kind_of(kind).has_root else None
            whole = jc.Collective(kind, network.num_ranks, root=root)
            assert took >= machine.least_seconds(network, whole, size), (name, kind, size)


def test_a_table_is_the_same_after_its_file(tmp_path):
    for each in TABLES.values():
        text = jc.measured.dumps(each)
        assert jc.measured.dumps(jc.measured.loads(text)) == text
    jc.measured.save(tmp_path / "made.json", TABLES["oci-h100"])
    assert jc.measured.load(tmp_path / "made.json").rows == 2


def test_rounded_throughputs_are_known_within_their_step():
    for each in TABLES["xla-gpu"].curves:
        rounded = each.machine in ("gb200-rack", "gb300-rack")
        assert each.step == (1e7 if rounded else 0)
    rack = next(each for each in TABLES["xla-gpu"].curves if each.machine == "gb200-rack")
    throughputs = rack.nbytes / rack.seconds
    assert rack.uncertainty == pytest.approx(0.5e7 / throughputs)


BAD = {
    "a time of 0": (curve(ns=column(31_000, 0, 2_730_000)), "16777216 bytes in 0 ns"),
    "a size of 0": (curve(nbytes=column(0, 2**24, 2**30)), "0 bytes in 31000 ns"),
    "twice": (curve(nbytes=column(2**20, 2**20, 2**30)), "the size 1048576 is given twice"),
    "falls": (curve(nbytes=column(2**24, 2**20, 2**30)), "the size 16777216 stands before 1048576"),
    "lengths": (curve(ns=column(31_000)), "3 sizes and 1 times"),
    "none": (curve(nbytes=column(), ns=column()), "0 sizes and 0 times"),
    "floats": (curve(ns=np.asarray([1.5, 2.5, 3.5])), "column of int64"),
    "microseconds for ns": (curve(ns=column(31, 82, 2_730)), "other units"),
    "ms for ns": (curve(ns=column(*(10**6 * n for n in (31_000, 82_000, 2_730)))), "other units"),
    "unknown machine": (curve(machine="h300-host"), "nobody has measured a machine 'h300-host'"),
    "too many ranks": (curve(ranks=16), "rows of another machine"),
    "part of a whole": (curve(machine="h100-2-hosts", ranks=8), "measured with 16 ranks"),
    "kind": (curve(collective="allgather"), "collective must be one of"),
}


@pytest.mark.parametrize("name", BAD)
def test_rows_that_are_not_measured_times_are_named(name):
    bad, message = BAD[name]
    assert table(curve()).rows == 3
    with pytest.raises(FormatError, match=message):
        table(bad)


def test_one_curve_is_given_once():
    table(curve(), curve(dtype="bf16"), curve(algorithm="ring"))
    with pytest.raises(FormatError, match=r"given twice; keep one"):
        table(curve(), curve())
    with pytest.raises(FormatError, match=r"in place and out of place; keep one, the other in"):
        table(curve(in_place=True), curve(in_place=False))


def test_fields_of_files_are_refused_by_name():
    text = jc.measured.dumps(table(curve()))
    for old, new, message in (
        ('"ns"', '"us"', r"curves\[0\].ns is missing"),
        ('"ranks": 8', '"ranks": 8.0', r"curves\[0\].ranks must be an integer"),
        ("31000", "31000.5", r"curves\[0\].ns\[0\] must be an integer"),
        ("measured/1", "measured/2", "format must be"),
        ('"licence"', '"license"', "licence is missing"),
    ):
        with pytest.raises(FormatError, match=message):
            jc.measured.loads(text.replace(old, new))
    assert dataclasses.fields(Table)[-1].name == "curves"
