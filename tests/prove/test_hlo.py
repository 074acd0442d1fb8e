"""Compiled HLO: programs of our lowerings replayed, whole programs in one order, wrong ones."""

from __future__ import annotations

import itertools
import random
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib import _hlo  # type: ignore[attr-defined]

import jaxcoll as jc
from jaxcoll import aot
from jaxcoll.aot.hlo import replica_groups
from jaxcoll.prove import NotProved, NotRead, hlo, prove_text

RING = jc.topologies.ring(4)
CALLS = {
    "all_reduce": lambda x, **said: jc.psum(x, "r", **said),
    "all_gather": lambda x, **said: jc.all_gather(x, "r", tiled=True, **said),
    "reduce_scatter": lambda x, **said: jc.psum_scatter(x, "r", tiled=True, **said),
    "all_to_all": lambda x, **said: jc.all_to_all(x, "r", 0, 0, tiled=True, **said),
    "broadcast": lambda x, **said: jc.pbroadcast(x, "r", 0, **said),
}


def compiled(topology: jc.Topology, kind: str, name: str, lowering: str, chunks: int = 1) -> str:
    """The text of one collective's program, tables and all."""
    ranks = topology.num_ranks
    schedule = jc.synthesize(topology, kind, name, chunks=chunks)
    mesh = Mesh(np.array(jax.devices("cpu")[:ranks]), ("r",))
    run = jax.shard_map(
        lambda x: CALLS[kind](x, schedule=schedule, lowering=lowering),
        mesh=mesh, in_specs=P("r"), out_specs=P("r"), check_vma=False,
    )  # fmt: skip
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    made = jax.jit(run).lower(jnp.zeros(chunks * ranks * ranks)).compile()
    whole: Any = made.runtime_executable()
    return whole.hlo_modules()[0].to_string(options)


@pytest.mark.parametrize(
    ("kind", "name", "lowering"),
    [
        ("all_reduce", "ring", "ssa"),
        ("all_reduce", "tacos", "scan"),
        ("all_reduce", "tacos", "pallas"),
        ("all_gather", "tacos", "ssa"),
        ("reduce_scatter", "ring", "scan"),
        ("all_to_all", "direct", "scan"),
        ("broadcast", "tacos", "ssa"),
    ],
)
def test_programs_of_our_lowerings_are_replayed(kind: str, name: str, lowering: str):
    text = compiled(RING, kind, name, lowering)
    proof = prove_text(text, kind, 4)
    assert (proof.format, proof.collective, proof.ranks) == ("HLO", kind, 4)
    assert proof.messages >= 3
    with pytest.raises(NotProved, match="has 4 ranks, but 5 were asked for"):
        prove_text(text, kind, 5)
    other = {"all_reduce": "broadcast", "broadcast": "all_reduce"}.get(kind, "all_reduce")
    with pytest.raises(NotProved, match=r"rank|elements"):
        prove_text(text, other)


def test_what_xla_does_itself_is_replayed():
    mesh = Mesh(np.array(jax.devices("cpu")[:4]), ("r",))
    for call, kind in (
        (lambda x: jax.lax.psum(x, "r"), "all_reduce"),
        (lambda x: jax.lax.all_gather(x, "r", tiled=True), "all_gather"),
    ):
        run = jax.shard_map(call, mesh=mesh, in_specs=P("r"), out_specs=P(), check_vma=False)
        text = jax.jit(run).lower(jnp.zeros(16)).compile().as_text() or ""
        assert prove_text(text, kind, 4).collective == kind


def test_no_message_of_a_ring_can_be_lost_or_sent_elsewhere():
    text = compiled(RING, "all_reduce", "ring", "ssa")
    dice = random.Random(0)
    found = list(re.finditer(r"source_target_pairs=\{([^=]*?\})\}", text))
    for _ in range(60):
        each = dice.choice(found)
        rows = [list(map(int, pair)) for pair in re.findall(r"\{(\d),(\d)\}", each[1])]
        i = dice.randrange(len(rows))
        if dice.random() < 0.5:
            del rows[i]
        else:
            rows[i][1] = dice.choice([rank for rank in range(4) if rank != rows[i][1]])
        said = ",".join(f"{{{a},{b}}}" for a, b in rows)
        mutant = text[: each.start(1)] + said + text[each.end(1) :]
        with pytest.raises(NotProved):
            prove_text(mutant, "all_reduce")


def program(body: str, *, ranks: int = 4, head: str = "", before: str = "") -> str:
    """A program in the style of compiled ones, made here."""
    rows = "\n".join(f"  {row.strip()}" for row in body.strip().splitlines())
    return (
        f"HloModule step, is_scheduled=true, num_partitions={ranks}{head}\n\n"
        "%sum (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n"
        "  %b = f32[] parameter(1)\n  ROOT %c = f32[] add(%a, %b)\n}\n\n"
        f"{before}\nENTRY %main (p: f32[8]) -> f32[8] {{\n  %p = f32[8]{{0}} parameter(0)\n"
        f"{rows}\n}}\n"
    )


GLOBAL = "channel_id=1, use_global_device_ids=true, to_apply=%sum"
ROWS, COLUMNS, ALL = "{{0,1},{2,3}}", "{{0,2},{1,3}}", "{{0,1,2,3}}"


def reduced(name: str, groups: str, of: str = "p") -> tuple[str, str]:
    """The start and the done of an all-reduce."""
    return (
        f"%{name}s = f32[8]{{0}} all-reduce-start(%{of}), replica_groups={groups}, {GLOBAL}",
        f"%{name} = f32[8]{{0}} all-reduce-done(%{name}s)",
    )


def two(first: str, second: str, order: str) -> str:
    """Two all-reduces whose starts and dones come in an order, such as "aAbB"."""
    rows = dict(zip("aAbB", (*reduced("x", first), *reduced("y", second)), strict=True))
    body = [rows[letter] for letter in order]
    return program("\n".join([*body, "ROOT %z = f32[8]{0} add(%x, %y)"]))


@pytest.mark.parametrize("order", ["aAbB", "bBaA", "abAB", "abBA"])
@pytest.mark.parametrize(
    ("groups", "circle"),
    [((ROWS, COLUMNS), True), ((ROWS, ALL), True), ((ROWS, ROWS), False), ((ALL, ALL), False)],
)
def test_groups_under_way_at_once_must_not_join_ranks_in_a_circle(order, groups, circle):
    """Rows and columns have one rank in common each, and still wait for one another."""
    text = two(groups[0], groups[1], order)
    if circle and order[:2] == "ab":
        with pytest.raises(NotProved, match="join ranks in a circle"):
            prove_text(text)
    else:
        assert prove_text(text, None, 4).messages == 2


def test_chains_of_groups_are_no_circle():
    rows = [*reduced("x", "{{0,1},{2},{3}}"), *reduced("y", "{{1,2},{0},{3}}")]
    text = program("\n".join([rows[0], rows[2], rows[1], rows[3], "ROOT %z = f32[8] add(%x, %y)"]))
    assert prove_text(text).messages == 2


IF = """
%yes (q: f32[8]) -> f32[8] {{
  %q = f32[8]{{0}} parameter(0)
  ROOT %r = f32[8]{{0}} all-reduce(%q), replica_groups={yes}, {said}
}}

%no (t: f32[8]) -> f32[8] {{
  %t = f32[8]{{0}} parameter(0)
  ROOT %u = f32[8]{{0}} {no}
}}
"""
CHOOSE = "ROOT %z = f32[8] conditional(%w, %p, %p), true_computation=%yes, false_computation=%no"
LESS = "\n%k = u32[] constant(2)\n%w = pred[] compare(%f, %k), direction=LT"
BY_RANK, BY_DATA = "%f = u32[] partition-id()" + LESS, "%f = u32[] convert(%p)" + LESS
BY_SUM = f"%n = f32[8]{{0}} all-reduce(%p), replica_groups={ALL}, {GLOBAL}\n%f = u32[] convert(%n)"
BY_SUM += LESS


@pytest.mark.parametrize(
    ("by", "other", "why"),
    [
        (BY_RANK, "copy(%t)", "yes and no hold different collectives"),
        (BY_DATA, "copy(%t)", "its choice may differ by rank; all-reduce r"),
        (BY_RANK, f"all-reduce(%t), replica_groups={ROWS}, {GLOBAL}", "different collectives"),
        (BY_RANK, f"all-reduce(%t), replica_groups={ALL}, {GLOBAL}", None),
        (BY_SUM, "copy(%t)", None),
    ],
)
def test_branches_that_differ_by_rank_hold_the_same_collectives(by: str, other: str, why):
    text = program(f"{by}\n{CHOOSE}", before=IF.format(yes=ALL, no=other, said=GLOBAL))
    if why is None:
        assert prove_text(text).collective == "program"
    else:
        with pytest.raises(NotProved, match=why):
            prove_text(text)


LOOP = """
%body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s = (s32[], f32[8]{0}) parameter(0)
  %x = f32[8]{0} get-tuple-element(%s), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%s#0, %one)
  %y = f32[8]{0} all-reduce(%x), replica_groups={{0,1,2,3}}, GLOBAL
  ROOT %t = (s32[], f32[8]{0}) tuple(%next, %y)
}

%more (s2: (s32[], f32[8])) -> pred[] {
  %s2 = (s32[], f32[8]{0}) parameter(0)
  %i2 = s32[] get-tuple-element(%s2), index=0
  %most = s32[] constant(3)
  ROOT %w = pred[] compare(%i2, %most), direction=LT
}
""".replace("GLOBAL", GLOBAL)
TURNS = """
%first = s32[] FIRST
%start = (s32[], f32[8]{0}) tuple(%first, %p)
%loop = (s32[], f32[8]{0}) while(%start), condition=%more, body=%bodyKNOWN
ROOT %z = f32[8]{0} get-tuple-element(%loop), index=1
"""


@pytest.mark.parametrize(
    ("first", "known", "proved"),
    [
        ("constant(0)", "", True),
        ("bitcast(%p)", "", False),
        ("bitcast(%p)", ', backend_config={"known_trip_count":{"n":"3"}}', True),
    ],
)
def test_loops_take_as_many_iterations_on_all_ranks(first: str, known: str, proved: bool):
    body = TURNS.replace("FIRST", first).replace("KNOWN", known)
    if proved:
        assert prove_text(program(body, before=LOOP)).messages == 1
    else:
        with pytest.raises(NotProved, match="number of iterations is not known nor shown"):
            prove_text(program(body, before=LOOP))


PERMUTE = "ROOT %z = f32[8]{0} collective-permute(%p), channel_id=1, source_target_pairs=PAIRS"
REDUCE = "ROOT %z = f32[8]{0} all-reduce(%p), replica_groups=GROUPS, " + GLOBAL


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (program(PERMUTE.replace("PAIRS", "{{0,1},{2,1}}")), "rank 1 is the target of two"),
        (program(PERMUTE.replace("PAIRS", "{{0,1},{0,2}}")), "rank 0 is the source of two"),
        (program(PERMUTE.replace("PAIRS", "{{0,4}}")), "there is no rank 4, only 4"),
        (program(REDUCE.replace("GROUPS", "{{0,1},{2}}")), "rank 3 runs it and is in no group"),
        (program(REDUCE.replace("GROUPS", "{{0,1},{1,2,3}}")), "rank 1 is in two groups"),
        (program(REDUCE.replace("GROUPS", "{{0,1},{2,9}}")), "rank 9 is not one of 4"),
        (program(REDUCE.replace("GROUPS", "[3,2]<=[4]")), "3 groups of 2 do not make 4 ranks"),
        (program(REDUCE.replace("GROUPS", ROWS).replace("channel_id=1, ", "")), "needs a channel"),
        (program(reduced("x", ALL)[0].replace("%x", "ROOT %x")), "nothing waits for its end"),
        (program("ROOT %x = f32[8]{0} all-reduce-done(%p)"), "which was not begun here"),
    ],
)  # fmt: skip
def test_wrong_groups_and_pairs_are_named(text: str, message: str):
    with pytest.raises(NotProved, match=message) as caught:
        prove_text(text)
    assert len(str(caught.value)) < 400


SOUND = program(REDUCE.replace("GROUPS", ALL))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SOUND.replace("is_scheduled=true, ", ""), "not scheduled, so its order is open"),
        (SOUND[:-3], "cut short"),
        (SOUND.replace("ROOT %z", "%z"), "no ROOT"),
        (SOUND.replace(ALL, "{{0,1,2,3}"), "a bracket has no end|neither a list|no operation"),
        (SOUND.replace(ALL, "@mesh"), "neither a list, nor iota, nor"),
        (SOUND.replace("num_partitions=4", "num_partitions=99999"), "at most 65536"),
        (program("ROOT %z = (f32[8], u32[], token[]) send(%p)"), "partners of sends"),
        (program("ROOT %z = f32[8] call(%p), to_apply=%lost"), "no computation is called lost"),
        ("HloModule", "not scheduled"),
    ],
)
def test_texts_that_cannot_be_read_are_refused(text: str, message: str):
    with pytest.raises(NotRead, match=message):
        prove_text(text)


WITH_LOOP = program(TURNS.replace("FIRST", "constant(0)").replace("KNOWN", ""), before=LOOP)
WITH_BRANCHES = program(
    f"{BY_SUM}\n{CHOOSE}", before=IF.format(yes=ALL, no="copy(%t)", said=GLOBAL)
)


def changed(text: str, dice: random.Random) -> str:
    """A text with a sign, a line or a number of it changed, or cut."""
    at, rows, how = dice.randrange(len(text)), text.split("\n"), dice.randrange(5)
    i, j = dice.randrange(len(rows)), dice.randrange(len(rows))
    numbers = list(re.finditer(r"\d+", text))
    if how == 0:
        return text[:at] + dice.choice("019{}[](),%=x#- \n'") + text[at + dice.randrange(3) :]
    if how == 1 and numbers:
        each = dice.choice(numbers)
        return text[: each.start()] + dice.choice(("0", "3", "-1", "9" * 30)) + text[each.end() :]
    if how == 2:
        rows[i], rows[j] = rows[j], rows[i]
    elif how == 3:
        del rows[i]
    else:
        return text[:at]
    return "\n".join(rows)


def test_changed_texts_are_proved_or_refused_and_nothing_else():
    dice = random.Random(0)
    texts = [SOUND, WITH_LOOP, WITH_BRANCHES, two(ROWS, ALL, "aAbB")]
    for _ in range(400):
        text = changed(dice.choice(texts), dice)
        for kind in (None, "all_reduce"):
            try:
                prove_text(text, kind)
            except (NotProved, NotRead) as error:
                assert len(str(error)) < 400, error  # noqa: PT017


def test_calls_of_calls_are_not_followed_for_ever():
    calls = "".join(
        f"%c{i} (q{i}: f32[8]) -> f32[8] {{\n  %q{i} = f32[8]{{0}} parameter(0)\n"
        f"  %d{i} = f32[8]{{0}} call(%q{i}), to_apply=%c{i + 1}\n"
        f"  ROOT %e{i} = f32[8]{{0}} call(%d{i}), to_apply=%c{i + 1}\n}}\n"
        for i in range(80)
    )
    with pytest.raises(NotRead, match="deep"):
        prove_text(program("ROOT %z = f32[8]{0} call(%p), to_apply=%c0", before=calls))


def test_trimmed_texts_of_one_replica_name_partitions():
    """Without a channel, and with a fusion whose computation is not in the text."""
    rows = "%f = f32[8] fusion(%p), kind=kLoop, calls=%gone\n"
    said = f"ROOT %z = f32[8] all-reduce(%f), replica_groups={ROWS}, to_apply=%sum"
    assert prove_text(program(rows + said)).messages == 1
    pair = "ROOT %z = f32[8] collective-permute(%p), source_target_pairs={{0,3}}"
    assert prove_text(program(pair)).messages == 1


def test_data_that_are_changed_are_not_replayed():
    text = program("ROOT %z = f32[8]{0} exponential(%p)")
    with pytest.raises(NotRead, match=r"exponential z .* data are only moved and added"):
        prove_text(text, "all_reduce")
    short = "ROOT %z = f32[8]{0} add(%p, %k)"
    with pytest.raises(NotRead, match="left out of the text; dump it whole"):
        prove_text(program("%k = f32[8]{0} constant({...})\n" + short), "all_reduce")


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_iota_groups_are_those_of_numpy(data):
    dims = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(dims))))
    ids = np.arange(np.prod(dims)).reshape(dims).transpose(order).ravel()
    size = data.draw(st.sampled_from([d for d in range(1, len(ids) + 1) if len(ids) % d == 0]))
    said = (
        f"[{len(ids) // size},{size}]<=[{','.join(map(str, dims))}]T({','.join(map(str, order))})"
    )
    module = hlo.parsed(program(REDUCE.replace("GROUPS", said), ranks=len(ids)))
    found = hlo.groups(module, module.computations["main"][-1])
    assert found == [tuple(map(int, row)) for row in ids.reshape(-1, size)]


@pytest.mark.parametrize(
    ("said", "groups"),
    [
        ("replica_groups={{0,1}}, to_apply=%sum", [(0, 2), (1, 3)]),
        ("channel_id=1, replica_groups={{0},{1}}, to_apply=%sum", [(0, 1), (2, 3)]),
        ("channel_id=1, replica_groups={{0,1}}, to_apply=%sum", [(0, 1, 2, 3)]),
        (f"replica_groups={{{{0,3}},{{1,2}}}}, {GLOBAL}", [(0, 3), (1, 2)]),
        (f"replica_groups={{}}, {GLOBAL}", [(0, 1, 2, 3)]),
        (f"replica_groups=mesh['a'=2,'b'=2] {{'a'}}, {GLOBAL}", [(0, 2), (1, 3)]),
        (f"replica_groups=mesh['a'=2,'b'=2] {{'b','a'}}, {GLOBAL}", [(0, 2, 1, 3)]),
        (
            f"replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {{'b'}}, {GLOBAL}",
            [(0, 2), (1, 3)],
        ),
    ],
)
def test_groups_are_of_replicas_partitions_or_both(said: str, groups: list):
    text = program(f"ROOT %z = f32[8] all-reduce(%p), {said}", ranks=2, head=", replica_count=2")
    module = hlo.parsed(text)
    assert hlo.groups(module, module.computations["main"][-1]) == groups


def test_a_training_step_on_a_mesh_is_met_in_one_order():
    """Layers in a scan, tensor and data parallel: all-reduces of rows and columns of ranks."""
    mesh = Mesh(np.array(jax.devices("cpu")[:8]).reshape(2, 4), ("data", "model"))

    def loss(weights, x):
        def layer(h, w):
            return jnp.tanh(h @ w[0]) @ w[1], None

        return (jax.lax.scan(layer, x, weights)[0] ** 2).mean()

    def step(weights, x):
        return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights, x))

    specs = (P(None, None, "model"), P(None, "model", None))
    arguments = [
        tuple(jax.ShapeDtypeStruct((3, 8, 8), jnp.float32, sharding=NamedSharding(mesh, spec))
              for spec in specs),
        jax.ShapeDtypeStruct((4, 8), jnp.float32, sharding=NamedSharding(mesh, P("data"))),
    ]  # fmt: skip
    text = jax.jit(step).lower(*arguments).compile().as_text() or ""
    proof = prove_text(text, None, 8)
    assert proof.messages >= 2
    rows = {tuple(sorted(group)) for each in _collectives(text) for group in each}
    assert len({len(row) for row in rows}) > 1


def test_groups_of_a_step_are_those_of_the_other_reader():
    """``jaxcoll.aot`` reads groups for its summaries; neither imports the other."""
    for said in (ROWS, "[2,2]<=[2,2]T(1,0)", "mesh['a'=2,'b'=2] {'a'}"):
        text = program(REDUCE.replace("GROUPS", said))
        other = aot.parse(text)
        each = next(i for i in other.instructions("main") if i.opcode == "all-reduce")
        rows = replica_groups(each, 4).tolist()
        assert _collectives(text) == [[tuple(row) for row in rows]]


def _collectives(text: str) -> list[list[tuple[int, ...]]]:
    module = hlo.parsed(text)
    every = itertools.chain.from_iterable(module.computations.values())
    return [hlo.groups(module, each) for each in every if hlo.base(each)]


@pytest.mark.parametrize(
    "line",
    [
        "%w = f32[4] slice(%p), slice={[0:8]}",
        "%w = f32[8] slice(%p), slice={[0:4]}",
        "%w = f32[8] slice(%p), slice={[4:12]}",
        "%w = f32[2,4] slice(%p), slice={[0:8]}",
        "%w = f32[4] copy(%p)",
        "%w = f32[2,4] copy(%p)",
        "%w = f32[4] reshape(%p)",
        "%w = f32[8,2] broadcast(%p), dimensions={1}",
        "%w = f32[12] concatenate(%p, %p), dimensions={0}",
        "%w = f32[8] concatenate(%p, %p), dimensions={0}",
        "%w = f32[9] pad(%p, %q), padding=0_2",
        "%w = f32[4] add(%p, %p)",
        "%w = f32[2,4] add(%p, %p)",
        "%w = f32[4] dynamic-slice(%p, %i), dynamic_slice_sizes={8}",
        "%w = f32[16] dynamic-slice(%p, %i), dynamic_slice_sizes={16}",
    ],
)
def test_sizes_that_contradict_the_shape_are_refused(line: str):
    before = "%q = f32[] constant(0)\n%i = s32[] constant(0)\n"
    with pytest.raises((NotRead, NotProved), match=r"sizes|shape|not replayed"):
        prove_text(program(f"{before}{line}\nROOT %z = f32[8] copy(%p)"), "all_reduce")


def test_sizes_that_fit_are_replayed():
    """As above, with the shapes that the operations give."""
    lines = """%q = f32[] constant(0)
%i = s32[] constant(0)
%a = f32[4] slice(%p), slice={[0:4]}
%b = f32[2] slice(%p), slice={[1:8:4]}
%c = f32[16] concatenate(%p, %p), dimensions={0}
%d = f32[10] pad(%p, %q), padding=0_2
%e = f32[2,8] broadcast(%p), dimensions={1}
%f = f32[4] dynamic-slice(%p, %i), dynamic_slice_sizes={4}"""
    with pytest.raises(NotProved, match="lacks the contribution"):
        prove_text(program(f"{lines}\nROOT %z = f32[8] copy(%p)"), "all_reduce")
