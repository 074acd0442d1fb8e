"""Every synthesizer's schedules up to 16 ranks: written for each runtime, proved, and read back.

The cases are those of the battery (``tests.synth.cases``). A schedule that a format does
not hold must be refused, by the number that is too large or because it has no such collective.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import jaxcoll as jc
from jaxcoll.errors import FormatError
from jaxcoll.io import msccl, mscclpp
from jaxcoll.io.sends import MSCCL_WORDS
from jaxcoll.prove import prove_text
from tests.claims.printed import assert_claimed
from tests.cli.calls import called
from tests.io.networks import hosts
from tests.prove import sums
from tests.strategies import collectives
from tests.synth.cases import CASES, Case

DRAWN = {
    "deadline": None,
    "phases": (Phase.generate,),
    "suppress_health_check": list(HealthCheck),
}
FEW = [case for case in CASES if case.synthesizer.name in ("forestcoll", "ring", "tacos")][::4]
NO_WORD = re.compile(
    "are written for all_gather, reduce_scatter, all_reduce of all ranks with equal"
)
# Of each limit, a sentence with the number that is over it.
TOO_LARGE = re.compile(
    "(has|have|are|,|with) [0-9]+ .*(at most|takes|takes at most) [0-9]+|[0-9]+ .* at most [0-9]+"
)
WAYS = {
    "msccl": (msccl.dumps, {"dialect": "msccl"}, msccl.loads),
    "azure": (msccl.dumps, {"dialect": "azure"}, msccl.loads),
    "mscclpp": (mscclpp.dumps, {}, None),
}


def written(dumps, schedule: jc.Schedule, options: dict[str, str]) -> tuple[str | None, str]:
    """The text, or None and why not."""
    try:
        return dumps(schedule, **options), ""
    except FormatError as error:
        return None, str(error)


def written_and_proved(schedule: jc.Schedule) -> set[str]:
    """The runtimes that take a schedule; each file is proved, and read back takes equally long."""
    what, taken = schedule.collective, set()
    has_word = what.kind in MSCCL_WORDS and not what.is_grouped and not what.shares
    for runtime, (dumps, options, loads) in WAYS.items():
        text, why = written(dumps, schedule, options)
        if text is None:
            assert (TOO_LARGE if has_word else NO_WORD).search(why), why
            continue
        proof = prove_text(text, what.kind, what.num_ranks, runtime=loads and runtime)
        assert (proof.chunks, proof.messages) == (what.num_chunks, schedule.num_sends)
        topology = schedule.topology
        again = msccl.lift(loads(text), topology) if loads else mscclpp.loads(text, topology)
        assert jc.simulate(again, 2**24).time == jc.simulate(schedule, 2**24).time
        taken.add(runtime)
    return taken


def drawn(case: Case, data: st.DataObject) -> jc.Schedule:
    topology = data.draw(case.networks.filter(lambda network: network.num_ranks <= 16))
    grouped = None if case.grouped else False
    collective = data.draw(collectives(topology.num_ranks, case.kinds, 3, grouped))
    return case.synthesizer.synthesize(topology, collective, data.draw(st.integers(0, 99)))


@pytest.mark.parametrize("case", FEW, ids=str)
@settings(max_examples=2, **DRAWN)
@given(data=st.data())
def test_some_cases_are_written_and_proved(case: Case, data: st.DataObject):
    written_and_proved(drawn(case, data))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
@settings(max_examples=5, **DRAWN)
@given(data=st.data())
def test_every_case_is_written_and_proved(case: Case, data: st.DataObject):
    written_and_proved(drawn(case, data))


def test_sums_of_runs_that_begin_apart_are_written_and_proved():
    """Drawn for Trivance and Blink only: two sums of a step that threads would share unlike."""
    assert written_and_proved(sums.begun_apart()) == set(WAYS)


@pytest.mark.parametrize("name", ["ring", "forestcoll", "bfb"])
def test_a_synthesizer_by_name_fits_every_runtime(name: str):
    ring = jc.topologies.ring(4)
    for runtime in WAYS:
        made = jc.io.synthesize_for(ring, "all_reduce", name, for_runtime=runtime)
        assert runtime in written_and_proved(made)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "row"), [("dgx_h100", "two H100 hosts"), ("dgx_a100", "two DGX A100")]
)
@pytest.mark.parametrize(("runtime", "file"), [("msccl", "p.xml"), ("mscclpp", "p.json")])
def test_two_hosts_have_the_share_of_the_bound_that_the_page_has(
    capsys, tmp_path: Path, name, row, runtime, file
):
    """From a dump of NCCL's to a proved file in a command each, and back."""
    dump, program, schedule = hosts.DUMPS / f"{name}.xml", tmp_path / file, tmp_path / "s.json"
    code, out, _ = called(
        capsys, "synth", "--from", dump, "--hosts", "2", "all_reduce", "-s", "forestcoll",
        "--size", "1GB", "--for-runtime", runtime, "-o", program,
    )  # fmt: skip
    assert code == 0
    found = re.search(r"(\d+) chunks per shard\n.* ([\d.]+) % of the bound", out)
    assert found
    chunks, percent = map(float, found.groups())
    assert percent >= 80
    before = rf"\| {row} \| " + r"[^|]*\| " * (runtime == "mscclpp")
    assert_claimed("docs/formats.md", before + r"(\d+) chunks, ([\d.]+) %", [chunks, percent])
    assert called(capsys, "prove", program, "--as", "all_reduce", "--ranks", "16")[0] == 0
    assert called(capsys, "convert", dump, tmp_path / "n.json", "--hosts", "2")[0] == 0
    back = called(capsys, "convert", program, schedule, "--network", tmp_path / "n.json")
    assert back[0] == 0
    assert called(capsys, "verify", schedule)[0] == 0
