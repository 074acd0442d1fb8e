"""MSCCL programs proved and refused by the checker, and by the runtimes' rules."""

from __future__ import annotations

import re

import pytest

import jaxcoll as jc
from jaxcoll.io import msccl
from jaxcoll.prove import NotProved, NotRead, prove_text
from tests.io.mutations import refuses
from tests.io.test_msccl import ring_program
from tests.prove import programs

RING = programs.ring_all_reduce(4)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (RING, "all_reduce"),
        (programs.all_pairs(3), "all_reduce"),
        (programs.all_to_all(3), "all_to_all"),
        (ring_program(2, "LL"), "all_gather"),
        (programs.through_the_neighbour(answers=True), "all_reduce"),
    ],
)
def test_programs_in_the_styles_of_others_are_proved(text: str, kind: str):
    proof = prove_text(text, kind)
    assert (proof.collective, proof.format) == (kind, "MSCCL XML")
    assert proof.messages > 0


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("protocol", ["Simple", "LL"])
def test_programs_of_ours_are_proved(kind: str, protocol: str):
    for network in (jc.topologies.torus(2, 3), jc.topologies.switch(4), jc.topologies.ring(3)):
        schedule = jc.synthesize(network, kind, "tacos", chunks=2)
        text = msccl.dumps(msccl.lower(schedule, protocol=protocol))
        proof = prove_text(text, kind, network.num_ranks)
        assert proof.messages == schedule.num_sends


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # Contents, with the chunk that is wrong.
        (RING.replace('type="rrcs"', 'type="rcs"', 1), "lacks the contribution of rank . to chunk"),
        (RING.replace('type="rrs"', 'type="rcs"', 1), "lacks|twice"),
        (RING.replace('srcoff="3"', 'srcoff="2"', 1), "adds chunk"),
        (re.sub(r'(type="rcs".*dstoff=)"3"', r'\1"2"', RING, count=1), "chunk"),
        (programs.all_to_all(3).replace('dstoff="2"', 'dstoff="1"', 1), "chunk"),
        # Messages.
        (ring_program(3), "stops with 2 slots .* line .* a free slot for ever"),
        (ring_program(2), "stops with 2 slots"),
        (RING.replace('type="r"', 'type="cpy"', 1), "nothing receives|stops|chunk"),
        # Uses of a chunk in no certain order.
        (programs.all_pairs(3, waits=False), "no certain order|holds nothing"),
        (programs.through_the_neighbour(answers=False), "no certain order"),
        (RING.replace('inplace="1"', 'inplace="0"'), "no call chooses it"),
    ],
)
def test_wrong_programs_are_not_proved(text: str, message: str):
    with pytest.raises(NotProved, match=message):
        prove_text(text)


def test_a_program_that_waits_for_what_is_never_marked_stops():
    text = programs.all_pairs(3).replace('hasdep="1"', 'hasdep="0"')
    with pytest.raises(NotProved, match="waits for another block for ever"):
        prove_text(text)


def test_whole_steps_and_single_chunks_are_both_run():
    """A ring whose steps are of two chunks runs with whole steps, and not a slot per chunk."""
    assert prove_text(ring_program(1)).messages == 6
    with pytest.raises(NotProved, match="connection: line"):
        prove_text(ring_program(2))
    uneven = (
        ring_program(1).replace('cnt="1"', 'cnt="2"', 1).replace('o_chunks="3"', 'o_chunks="9"')
    )
    with pytest.raises((NotProved, NotRead)):
        prove_text(uneven)


test_files_are_read_by_the_runtimes_rules = refuses(prove_text, NotRead, RING, "prove_msccl")


def test_comments_and_unknown_elements_are_passed_over():
    text = RING.replace("  <gpu", '  <!-- a\n > b --><copy x="1"/>\n  <gpu', 1)
    assert prove_text(text) == prove_text(RING)


def test_a_program_is_proved_for_the_runtimes_that_take_it():
    rows = 66  # steps of the only block of a rank, more than RCCL takes
    text = programs.ring_all_reduce((rows + 2) // 2)
    assert "not by rccl: 67 steps in a block, at most 64" in prove_text(text).shown
    with pytest.raises(NotProved, match="rccl does not take it: 67 steps"):
        prove_text(text, runtime="rccl")
    with pytest.raises(NotProved, match="no runtime takes it: msccl: 257 steps in a block"):
        prove_text(programs.ring_all_reduce(129))
    with pytest.raises(NotProved, match="azure does not take it: needs the attribute minBytes"):
        prove_text(re.sub(' minBytes="0"', "", RING), runtime="azure")
    scatter = jc.synthesize(jc.topologies.ring(3), "reduce_scatter", "ring")
    with pytest.raises(NotProved, match="azure does not take it: it calls no collective reduce_sc"):
        prove_text(msccl.dumps(scatter), runtime="azure")
    with pytest.raises(NotRead, match="no runtime is called 'nccl'; known: msccl, azure, rccl"):
        prove_text(RING, runtime="nccl")


def test_a_broadcast_has_the_root_that_is_said():
    rows: list[programs.Blocks] = [
        [(1, -1, 0, [("s", ("i", 0), ("o", 0), 1, None, 0)])],
        [(-1, 0, 0, [("r", ("i", 0), ("o", 0), 1, None, 0)])],
    ]
    text = programs.text("broadcast", "Simple", 1, rows)
    assert prove_text(text, root=0).collective == "broadcast"
    with pytest.raises(NotProved, match="holds nothing"):
        prove_text(text, root=1)
    with pytest.raises(NotProved, match="the root must be a rank"):
        prove_text(text, root=2)


def test_programs_are_judged_for_the_sizes_that_they_claim():
    """Everyone sends three chunks before it receives any; those of small calls fit a slot."""
    text = programs.all_pairs(3, proto="Simple")
    with pytest.raises(NotProved, match="stops with 2 slots"):
        prove_text(text)
    small = text.replace(f'maxBytes="{1 << 30}"', f'maxBytes="{1 << 21}"')
    assert "calls of up to 2097152 bytes do not stop" in prove_text(small).shown[1]
    assert "calls of any size do not stop" in prove_text(RING).shown[1]
    for largest in ("0", "9999999999"):  # 0 stands for any size
        with pytest.raises(NotProved, match="stops with 2 slots"):
            prove_text(text.replace(f'maxBytes="{1 << 30}"', f'maxBytes="{largest}"'))


def test_a_block_without_steps_is_idle():
    idle = '<tb id="1" send="-1" recv="-1" chan="0"></tb>\n  </gpu>'
    assert prove_text(RING.replace("</gpu>", idle)) == prove_text(RING)
