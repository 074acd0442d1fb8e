"""MSCCL++ plans: ours written, proved and read back; those of other styles; wrong ones."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll.errors import FormatError
from jaxcoll.io import mscclpp
from jaxcoll.io.mscclpp import lowering
from jaxcoll.io.mscclpp.block import Block, in_parts
from jaxcoll.io.mscclpp.operation_count import OperationCount
from jaxcoll.io.sends import Run, runs
from jaxcoll.prove import NotProved, NotRead, prove_text
from tests.cli.calls import called
from tests.io.networks import hosts
from tests.prove import machine, plan_mutants, plans, sums

KINDS = ("all_gather", "reduce_scatter", "all_reduce")
OURS = mscclpp.dumps(jc.synthesize(jc.topologies.ring(3), "all_reduce", "ring"))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (plans.packets(), "all_gather"),
        (plans.pair(), "all_reduce"),
        (plans.pair(between="barrier"), "all_reduce"),
    ],
)
def test_plans_in_the_styles_of_others_are_proved(text: str, kind: str):
    proof = prove_text(text, kind, 2)
    assert (proof.format, proof.messages) == ("MSCCL++ plan", 4 if kind == "all_reduce" else 2)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_schedules_are_written_proved_and_read_back(data):
    networks = [
        jc.topologies.torus(2, 3), jc.topologies.switch(4), jc.topologies.ring(5),
        jc.topologies.nvswitch_hosts((3, 3), inside=300e9, network=50e9),
    ]  # fmt: skip
    topology, kind = data.draw(st.sampled_from(networks)), data.draw(st.sampled_from(KINDS))
    name, chunks = data.draw(st.sampled_from(["tacos", "ring"])), data.draw(st.integers(1, 3))
    schedule = jc.synthesize(topology, kind, name, chunks=chunks)
    text = mscclpp.dumps(schedule, ranks_per_host=data.draw(st.sampled_from([None, 1])))
    assert prove_text(text, kind, topology.num_ranks).messages == schedule.num_sends
    again = mscclpp.loads(text, topology)
    assert sends(again) == sends(schedule)
    assert jc.simulate(again, 2**20).time == jc.simulate(schedule, 2**20).time


def sends(schedule: jc.Schedule) -> list[tuple]:
    """Every send in order, with its path."""
    return [
        (int(step), schedule.edges.path(int(edge)), int(chunk), bool(reduce))
        for step, edge, chunk, reduce in zip(
            schedule.step, schedule.edge, schedule.chunk, schedule.reduce, strict=True
        )
    ]


def test_hosts_meet_in_port_channels_and_sums_in_scratch():
    network = jc.topologies.nvswitch_hosts((2, 2), inside=300e9, network=50e9)
    plan = mscclpp.lower(jc.synthesize(network, "all_reduce", "ring", chunks=1))
    kinds = {c["channel_type"] for gpu in plan["gpus"] for c in gpu["channels"]}
    assert kinds == {"memory", "port"}
    assert any(gpu["scratch_chunks"] for gpu in plan["gpus"])
    entry = json.loads(mscclpp.registry(plan, "p.json"))["plans"][0]
    assert (entry["world_size"], entry["nranks_per_node"]) == (4, 2)


def changed(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new, 1)
    return text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (plans.pair(between="none"), "no certain order"),
        (plans.packets().replace('"index": 1', '"index": 0'), "slot twice|chunk|holds|waits"),
        (changed(plans.pair(), ('"signal"', '"nop"')), "stops: operation"),
        (changed(plans.pair(), ('"wait"', '"nop"')), "no certain order|nothing waits|chunk"),
        (changed(plans.pair(), ('"rre"', '"get"')), "2 sources for 1 targets"),
        (changed(plans.pair(), ('"put"', '"nop"')), "lacks the contribution of rank"),
        (OURS.replace('"wait"', '"rlxwait"'), "may end before chunk . of buffer 'i' has"),
        (changed(plans.pair(), ('"index": 0', '"index": 7')), "uses chunk 7 of buffer 'i' of 2"),
        (OURS.replace('"signal"', '"nop"'), "stops"),
    ],
)
def test_wrong_plans_are_not_proved(text: str, message: str):
    with pytest.raises(NotProved, match=message) as caught:
        prove_text(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (changed(OURS, ('"input_chunks"', '"inputChunks"')), "MSCCL.. 0.7 or older"),
        (changed(OURS, ('"allreduce"', '"sendrecv"')), "collective"),
        (changed(OURS, ('"rlxsignal"', '"gstorepkt"')), "'gstorepkt' is not replayed"),
        (changed(OURS, ('"channel_type": "memory"', '"channel_type": "switch"')), "channel_type"),
        (changed(OURS, ('"id": 0', '"id": 1')), "must have the id 0|must be an integer"),
        (changed(OURS, ('"protocol": "Simple"', '"protocol": "LL128"')), "protocol"),
        (changed(OURS, ('"inplace": true', '"inplace": 1')), "inplace"),
        (plans.plan("allreduce", []), "gpus"),
    ],
)
def test_files_that_are_no_such_plans_are_refused(text: str, message: str):
    with pytest.raises(NotRead, match=message):
        prove_text(text)


def test_limits_of_the_executor_are_kept_or_named(tmp_path: Path):
    ring = jc.topologies.ring(4)
    with pytest.raises(
        FormatError, match=r"operations with 108 blocks per rank, and MSCCL.. takes at most 64"
    ):
        mscclpp.lower(jc.synthesize(ring, "all_reduce", "ring", chunks=3000))
    made = jc.io.synthesize_for(ring, "all_reduce", "ring", for_runtime="mscclpp", nbytes=1e9)
    mscclpp.save(tmp_path / "p.json", made, name="mine")
    plan = json.loads((tmp_path / "p.json").read_text())
    assert max(len(b["ops"]) for gpu in plan["gpus"] for b in gpu["threadblocks"]) <= 64
    assert json.loads((tmp_path / "p.json.registry.json").read_text())["plans"][0]["id"] == "mine"
    with pytest.raises(FormatError, match="hosts of 3"):
        mscclpp.lower(made, ranks_per_host=3)
    crowd = jc.synthesize(jc.topologies.star(18), "all_gather", "direct")
    with pytest.raises(FormatError, match=r"17 memory channels, and MSCCL.. takes at most 16"):
        mscclpp.lower(crowd)
    with pytest.raises(FormatError, match="all_to_all"):
        mscclpp.lower(jc.synthesize(ring, "all_to_all"))


def test_roots_of_trees_do_not_fill_blocks():
    """Dealt one by one, chunks of different roots share a block; blocks are searched to an end."""
    network = jc.topologies.nvswitch_hosts((4, 4), inside=450e9, network=50e9)
    for chunks in (2, 4, 6):
        schedule = jc.synthesize(network, "all_reduce", "forestcoll", chunks=chunks)
        blocks = [len(gpu["threadblocks"]) for gpu in mscclpp.lower(schedule)["gpus"]]
        assert max(blocks) <= 2 * chunks


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_operations_are_counted_as_they_are_made(data):
    topology = data.draw(st.sampled_from([
        jc.topologies.torus(2, 3), jc.topologies.switch(4), jc.topologies.hypercube(3),
        jc.topologies.nvswitch_hosts((3, 3), inside=300e9, network=50e9),
    ]))  # fmt: skip
    kind, name = data.draw(st.sampled_from(KINDS)), data.draw(st.sampled_from(["tacos", "ring"]))
    schedule = jc.synthesize(topology, kind, name, chunks=data.draw(st.integers(1, 4)))
    per_host = data.draw(st.sampled_from([1, topology.num_ranks // 2, topology.num_ranks]))
    chunks = schedule.collective.num_chunks
    counted = OperationCount(schedule, per_host)
    count = data.draw(st.integers(1, chunks))
    for block_of in lowering._ways(chunks, count):
        assert counted.most(block_of) == _made(schedule, counted, block_of, per_host)


def _made(schedule: jc.Schedule, counted: OperationCount, block_of, per_host: int) -> int:
    """Operations of the fullest block, as they are made."""
    blocks = [
        Block(schedule, runs(schedule, counted.continues, block_of == b), per_host)
        for b in range(max(block_of) + 1)
    ]
    return max(len(ops) for block in blocks for ops in block.operations)


@pytest.mark.parametrize("per_host", [1, 3])
def test_threads_wait_between_sums_of_runs_that_begin_apart(per_host: int):
    """From memory and from scratch: one ``nop`` more than for sums that do not meet, and needed."""
    text = mscclpp.dumps(sums.begun_apart(), ranks_per_host=per_host)
    assert prove_text(text, "reduce_scatter", 3).messages == 12
    assert machine.fault(text, 20) == ""
    ops = json.loads(text)["gpus"][0]["threadblocks"][0]["ops"]
    added = [i for i, op in enumerate(ops) if op["name"] in ("rre", "re")]
    first, second = added[:2]
    assert [op["name"] for op in ops[first : second + 2]] == [
        ops[first]["name"], "nop", ops[second]["name"], "nop",
    ]  # fmt: skip
    assert second == first + 2

    def joined(plan: dict) -> None:
        del plan["gpus"][0]["threadblocks"][0]["ops"][first + 1]

    without = plan_mutants.changed(text, joined)
    with pytest.raises(NotProved, match="use chunk 1 of buffer 'i' of rank 0 in no certain order"):
        prove_text(without)
    assert "in any order" in machine.fault(without, 20)


def _meet(a: Run, b: Run) -> bool:
    """Whether two sums are of one chunk, and of different threads there."""
    overlap = max(a.first, b.first) < min(a.first + a.count, b.first + b.count)
    return overlap and a.first != b.first


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 5)), max_size=9))
def test_sums_have_as_few_parts_as_they_need(spans: list[tuple[int, int]]):
    runs = [Run(0, i, i, i, 99, (i,), *span, True) for i, span in enumerate(spans)]
    parts = in_parts(runs)
    assert sorted(run.place for part in parts for run in part) == [*range(len(runs))]
    assert not any(_meet(a, b) for part in parts for a in part for b in part)
    # Sums of which any two meet need a part each.
    most = max((size for size in range(1, len(runs) + 1)
                if any(all(_meet(a, b) for a, b in itertools.combinations(some, 2))
                       for some in itertools.combinations(runs, size))), default=0)  # fmt: skip
    assert len(parts) == most


@settings(max_examples=25, deadline=None)
@given(sums.trees(), st.data())
def test_sums_along_any_trees_are_written_counted_and_proved(schedule: jc.Schedule, data):
    ranks, chunks = schedule.collective.num_ranks, schedule.collective.num_chunks
    per_host = data.draw(st.sampled_from([1, ranks]))
    text = mscclpp.dumps(schedule, ranks_per_host=per_host)
    assert prove_text(text, "reduce_scatter", ranks).messages == schedule.num_sends
    assert sends(mscclpp.loads(text, schedule.topology)) == sends(schedule)
    count = data.draw(st.integers(1, chunks))
    counted = OperationCount(schedule, per_host)
    for block_of in lowering._ways(chunks, count):
        assert counted.most(block_of) == _made(schedule, counted, block_of, per_host)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(sums.trees(), st.booleans())
def test_sums_along_any_trees_run_in_any_order(schedule: jc.Schedule, is_host: bool):
    per_host = schedule.collective.num_ranks if is_host else 1
    text = mscclpp.dumps(schedule, ranks_per_host=per_host)
    assert (plan_mutants.refused(text), machine.fault(text, 3)) == ("", "")


def test_a_schedule_for_a_runtime_is_the_fastest_that_fits_and_not_the_longest():
    """At 25 MiB twelve times the chunks are half as fast on two hosts."""
    network = jc.topologies.nvswitch_hosts((3, 3), inside=450e9, network=50e9)
    made = jc.io.synthesize_for(network, "all_reduce", "forestcoll", for_runtime="mscclpp")
    free = jc.synthesize(network, "all_reduce", "forestcoll")
    assert jc.simulate(made, 25 * 2**20).time <= 1.25 * jc.simulate(free, 25 * 2**20).time
    with pytest.raises(FormatError, match="17 memory channels"):
        jc.io.synthesize_for(jc.topologies.star(18), "all_gather", "direct", for_runtime="mscclpp")


def test_plans_of_others_are_proved_and_not_read():
    with pytest.raises(FormatError, match="another tool wrote the plan; prove it instead"):
        mscclpp.loads(plans.pair(), jc.topologies.ring(2))
    with pytest.raises(FormatError, match="for 3 ranks"):
        mscclpp.loads(OURS, jc.topologies.ring(4))
    with pytest.raises(FormatError, match="not have the form of MSCCL"):
        mscclpp.loads(OURS.replace('"links"', '"lines"'), jc.topologies.ring(3))


def test_from_a_dump_to_a_proved_plan_in_a_command_each_and_back(capsys, tmp_path: Path):
    dump, plan = hosts.DUMPS / "dgx_h100.xml", tmp_path / "plan.json"
    code, _, _ = called(
        capsys, "synth", "--from", dump, "all_reduce", "-s", "forestcoll", "--for-runtime",
        "mscclpp", "--chunks", "2", "-o", plan,
    )  # fmt: skip
    assert code == 0
    assert called(capsys, "prove", plan, "--as", "all_reduce", "--ranks", "8")[0] == 0
    assert called(capsys, "convert", plan, tmp_path / "s.json", "--network", dump)[0] == 0
    assert called(capsys, "verify", tmp_path / "s.json")[0] == 0


def listed_otherwise(plan: dict) -> None:
    """Foreign buffers in two parts, each the other way round, with their numbers."""
    for gpu in plan["gpus"]:
        last = len(gpu["remote_buffers"]) - 1
        gpu["remote_buffers"].reverse()
        for block in gpu["threadblocks"]:
            for ref in list(block["remote_buffer_refs"]):
                ref["remote_buffer_ids"] = [last - i for i in ref["remote_buffer_ids"]]
                rest = {**ref, "remote_buffer_ids": ref["remote_buffer_ids"][1:]}
                ref["remote_buffer_ids"] = ref["remote_buffer_ids"][:1]
                block["remote_buffer_refs"].append(rest)


def test_lists_in_another_order_are_the_same_plan():
    text = plan_mutants.changed(OURS, listed_otherwise)
    assert prove_text(text) == prove_text(OURS)
    ring = jc.topologies.ring(3)
    assert mscclpp.loads(text, ring) == mscclpp.loads(OURS, ring)
    turned = plan_mutants.changed(OURS, lambda plan: plan["gpus"].reverse())
    with pytest.raises(FormatError, match="listed in order"):
        mscclpp.loads(turned, ring)
    with pytest.raises(NotRead, match="must have the id 0"):
        prove_text(turned)


# ---------------------------------------------------------------------- any order of threads


def split(plan: dict) -> None:
    """Two neighbouring puts as one of two sources, of which the second is another buffer's."""
    for row, i in plan_mutants.ops(plan):
        # Not of rank 0, whose input is the first chunk of the output.
        if [o["name"] for o in row[i : i + 2]] == ["put"] * 2 and row[i]["src_buff"][0]["index"]:
            for key in ("src_buff", "dst_buff", "channel_ids"):
                row[i][key] += row[i + 1][key]
            row[i]["src_buff"][1] |= {"type": "i", "index": 0}
            del row[i + 1]
            return


def got(plan: dict, index: int) -> None:
    """A ``get`` in place of a sum, from another place than it goes to."""
    for row, i in plan_mutants.ops(plan):
        if row[i]["name"] == "rre":
            row[i] |= {"name": "get", "src_buff": row[i]["src_buff"][1:]}
            row[i]["src_buff"][0]["index"] = index
            return


def local(plan: dict) -> None:
    """A ``get`` from the rank's own memory."""
    for row, i in plan_mutants.ops(plan):
        if row[i]["name"] == "rre":
            row[i] |= {"name": "get", "src_buff": row[i]["src_buff"][:1]}
            return


GATHER = mscclpp.dumps(jc.synthesize(jc.topologies.ring(3), "all_gather", "ring"))
HOSTS = jc.topologies.nvswitch_hosts((2, 2), inside=300e9, network=50e9)
PORTS = mscclpp.dumps(jc.synthesize(HOSTS, "all_gather", "tacos", chunks=1))


@pytest.mark.parametrize(
    ("text", "change", "message"),
    [
        (OURS, plan_mutants.without("nop"), "no certain order"),
        (PORTS, plan_mutants.without("flush"), "may end before chunk . of buffer 'o' was read"),
        (plans.pair(), plan_mutants.twice("sem_release"), "is given 2 times and taken 1 times"),
        (plans.pair(), plan_mutants.twice("signal"), "nothing waits for a signal"),
        (GATHER, split, "takes all its sources from the buffer of the first"),
        (OURS, lambda plan: got(plan, 2), "both must be equal"),
        (OURS, local, "needs a buffer of another rank in this place"),
        (OURS, plan_mutants.without("rlxwait", 0), "no certain order|nothing waits"),
        (plans.pair(between="barrier"), lambda plan: plan["gpus"][0]["threadblocks"].append(
            {**plan["gpus"][0]["threadblocks"][0], "id": 2}), "does not count the blocks"),
    ],
)  # fmt: skip
def test_what_the_kernel_does_not_order_is_refused(text: str, change, message: str):
    assert prove_text(text)
    with pytest.raises((NotProved, NotRead), match=message):
        prove_text(plan_mutants.changed(text, change))


def test_plans_of_ours_and_others_run_in_any_order():
    for title, text in plan_mutants.sound().items():
        assert (title, plan_mutants.judged(text, 4)) == (title, ("", ""))


def test_the_machine_finds_what_is_wrong():
    for between in ("semaphore", "barrier"):
        text = plan_mutants.changed(plans.pair(between=between), plan_mutants.without("nop"))
        assert machine.fault(text, 20)
    assert machine.fault(plans.pair(between="none"), 20)
    assert machine.fault(plan_mutants.changed(OURS, plan_mutants.without("wait")), 20)


def test_a_signal_that_a_proxy_carries_releases_what_was_written_through_memory():
    """Rank 1 writes to rank 0 and tells it by way of ranks 3 and 2, the first of them by a port."""

    def exchanged(plan: dict) -> None:
        row = plan["gpus"][1]["threadblocks"][0]["ops"]
        assert [row[at]["name"] for at in (1, 8)] == ["rlxsignal", "signal"]
        row[1], row[8] = row[8], row[1]

    text = plan_mutants.changed(plan_mutants.sound()["hosts all_gather"], exchanged)
    assert plan_mutants.judged(text, 20) == ("", "")


def test_mutants_are_refused_where_an_order_of_threads_is_wrong_and_only_there():
    *found, (_, counts) = plan_mutants.differences(120, seconds=15)
    assert found == []
    assert " 0 proved" not in counts


@pytest.mark.slow
def test_nearly_right_plans_are_judged_right():
    """Of every kind of operation none, one less, one more, or another in its place."""
    cases = list(plan_mutants.adversarial())
    assert len(cases) >= 67
    for title, text in cases:
        why, wrong = plan_mutants.judged(text, 6)
        assert bool(why) == bool(wrong), (title, why, wrong)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_mutants():
    *found, _ = plan_mutants.differences(3000, seed=10**6, seconds=300)
    assert found == []


# ---------------------------------------------------------------------- switches, pipelines, groups


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("pipelined", [False, True])
def test_switches_reduce_and_store_for_all_ranks(pipelined, chunks):
    found = prove_text(plans.through_switch(pipelined=pipelined, chunks=chunks), "all_reduce", 2)
    assert (found.chunks, found.messages) == (2 * chunks, 4 * chunks)
    said = "pipelines of 1, 2, 3 rounds are replayed"
    assert (said in found.shown) == pipelined


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"before": False}, "in no certain order"),
        ({"after": False}, "may end before chunk"),
        ({"relaxed": True}, "may end before chunk"),  # such signals order no memory
    ],
)
@pytest.mark.parametrize("pipelined", [False, True])
def test_switches_need_ranks_in_step(given, match, pipelined):
    with pytest.raises(NotProved, match=match):
        prove_text(plans.through_switch(pipelined=pipelined, **given))


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (('"reduce_op": "sum"', '"x": 1'), None, ""),
        (('"switch_channel_id": 0', '"switch_channel_id": 1'), NotRead, "switch_channel_id"),
        (('"index": 1', '"index": 2'), NotProved, "uses chunk 2 of buffer 'i' of 2"),
        (('"index": 1', '"index": 0'), NotProved, "in no certain order|contribution"),
        (('"buffer_type": "i"', '"buffer_type": "x"'), NotRead, "buffer_type"),
        (('"ranks": [\n        0,\n        1\n       ]', '"ranks": [0]'), NotProved, ""),
    ],
)
def test_switches_that_do_something_else(change, error, match):
    text = plans.through_switch()
    assert change[0] in text or "ranks" in change[0]
    if error is None:
        prove_text(text.replace(*change))
        return
    whole = json.loads(text)
    if "ranks" in change[0]:
        for gpu in whole["gpus"]:
            gpu["channels"][1]["rank_groups"] = [{"size": 1, "ranks": [gpu["id"]]}]
        changed_text = json.dumps(whole)
    else:
        changed_text = text.replace(*change)
    with pytest.raises(error, match=match):
        prove_text(changed_text)


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_blocks_of_a_group_move_a_part_each(blocks):
    found = prove_text(plans.in_groups(blocks), "all_gather", 2)
    assert found.chunks == 2
    if blocks > 1:
        for wrong in ([0] * blocks, list(range(blocks - 1))):
            with pytest.raises(NotProved):
                prove_text(plans.in_groups(blocks, wrong))


def test_what_a_pipeline_may_not_hold():
    whole = json.loads(plans.through_switch(pipelined=True))

    def with_pipeline(**changes) -> str:
        made = json.loads(json.dumps(whole))
        (pipeline,) = (op for op in made["gpus"][0]["threadblocks"][0]["ops"]
                       if op["name"] == "pipeline")  # fmt: skip
        pipeline |= changes
        return json.dumps(made)

    copy = {"name": "copy", "src_buff": [{"type": "i", "index": 0, "size": 1}],
            "dst_buff": [{"type": "s", "index": 0, "size": 1}]}  # fmt: skip
    two = {"name": "copy", "src_buff": [{"type": "i", "index": 0, "size": 2}],
           "dst_buff": [{"type": "i", "index": 0, "size": 1}]}  # fmt: skip
    for changes, match in (
        ({"iter_context": 3}, "unit_size"), ({"iter_context": {"unit_size": 1}}, "num_chunks"),
        ({"ops": [copy]}, "uses scratch"), ({"ops": [two]}, "1 and 2 chunks"),
        ({"ops": [{"name": "pipeline", "ops": []}]}, "'pipeline' is not replayed"),
        ({"ops": 3}, "ops"), ({"ops": [{"name": "nop"}] * 65}, "at most 64"),
    ):  # fmt: skip
        with pytest.raises(NotRead, match=match):
            prove_text(with_pipeline(**changes))


def test_chunks_are_not_cut_without_end():
    whole = json.loads(plans.in_groups(2))
    first, second = (whole["gpus"][0]["threadblocks"][at]["ops"][0] for at in (0, 1))
    first["tbg_info"], second["tbg_info"] = ({"tb_id": 0, "tbg_size": n} for n in (61, 59))
    with pytest.raises(NotRead, match="more than 64 parts"):
        prove_text(json.dumps(whole))
