"""Plans of MSCCL++ with operations removed, moved or changed, judged by the prover and a machine.

``python -m tests.prove.plan_mutants --count 100000`` counts those that are proved though some order
of their threads goes wrong, and those that are refused though none was found that does;
``--seconds`` ends it after so much of the processor's time.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jaxcoll as jc
from jaxcoll.io import mscclpp
from jaxcoll.prove import NotProved, NotRead, prove_text
from tests.prove import plans, sums
from tests.prove.machine import fault

Plan = dict[str, Any]
# Refused by a rule of the kernel, of its loader or of its memory model, which no order of threads
# on a machine without caches shows.
RULES = re.compile(
    "must|is not replayed|more than|uses another number|needs a buffer|sources? (for|and)"
    "|both must be equal|takes all its sources|uses no|needs a channel|lie in scratch|overlap other"
    "|with two scratch|uses chunk|does not count the blocks|which one goes on|has .* threads"
    "|slot twice|is not accessed"
)


def sound() -> dict[str, str]:
    """Plans that are right, of ours and in the styles of other tools."""
    hosts = jc.topologies.nvswitch_hosts((2, 2), inside=300e9, network=50e9)
    networks = {"ring": jc.topologies.ring(3), "hosts": hosts, "pair": jc.topologies.ring(2)}
    made = {
        f"{name} {kind}": mscclpp.dumps(jc.synthesize(network, kind, maker, chunks=chunks))
        for (name, network), maker, chunks in zip(
            networks.items(), ("ring", "tacos", "ring"), (1, 1, 2), strict=True
        )
        for kind in ("all_gather", "reduce_scatter", "all_reduce")
    }
    made["ports"] = mscclpp.dumps(
        jc.synthesize(networks["ring"], "all_reduce", "ring", chunks=1), ranks_per_host=1
    )
    made["meeting sums"] = mscclpp.dumps(sums.begun_apart())
    made["packets"] = plans.packets()
    for between in ("semaphore", "barrier"):
        made[between] = plans.pair(between=between)
    return made


def ops(plan: Plan) -> list[tuple[list, int]]:
    """Every operation, by the list of its block and its place there."""
    return [(block["ops"], i) for gpu in plan["gpus"] for block in gpu["threadblocks"]
            for i in range(len(block["ops"]))]  # fmt: skip


_OTHERS = {
    "signal": "rlxsignal", "rlxsignal": "signal", "wait": "rlxwait", "rlxwait": "wait",
    "put": "pws", "nop": "nop", "rre": "re", "re": "copy", "copy": "re", "flush": "signal",
    "sem_acquire": "sem_release", "sem_release": "sem_acquire", "barrier": "nop",
}  # fmt: skip


def mutated(text: str, dice: random.Random) -> str:
    """A plan with one to three changes."""
    plan = json.loads(text)
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        every = ops(plan)
        if not every:
            break
        row, at = dice.choice(every)
        other, to = dice.choice(every)
        op, how = row[at], dice.randrange(10)
        if how < 3:
            del row[at]
        elif how == 3:
            row.insert(to if other is row else at, copy.deepcopy(op))
        elif how == 4:
            row[at], other[to] = other[to], op
        elif how == 5 and at + 1 < len(row):
            row[at], row[at + 1] = row[at + 1], op
        elif how == 6:
            op["name"] = _OTHERS.get(op["name"], op["name"])
        elif how == 7:
            ends = op.get("src_buff", []) + op.get("dst_buff", [])
            if ends:
                end = dice.choice(ends)
                end["index"] = max(0, end["index"] + dice.choice((-1, 1)))
                if "type" in end and dice.random() < 0.3:
                    end["type"] = dice.choice("ios")
        elif how == 8 and "channel_ids" in op:
            ids = op["channel_ids"]
            op["channel_ids"] = dice.choice((ids[::-1], ids[:-1], ids + ids[:1]))
        else:
            kind = dice.choice(sorted({row[i]["name"] for row, i in every}))
            for each in {id(row): row for row, _ in every}.values():
                if each is row or dice.random() < 0.3:
                    each[:] = [o for o in each if o["name"] != kind]
    return json.dumps(plan)


def refused(text: str) -> str:
    """Why the prover refuses a plan; nothing where it proves it."""
    try:
        prove_text(text)
    except (NotProved, NotRead) as error:
        return str(error)
    return ""


def runs(text: str) -> int:
    """As many as show what scratch of one run does to another."""
    return 3 if '"use_double_scratch_buffer": true' in text else 2


def judged(text: str, seeds: int) -> tuple[str, str]:
    """Why the prover refuses a plan, and a fault of it; each nothing where there is none."""
    why = refused(text)
    if why and RULES.search(why):
        return why, why
    # Where it is refused, an order that shows why is looked for longer. That relaxed signals and
    # waits order no memory no machine shows that has memory alone, and no caches.
    wrong = fault(text, 20 * seeds if why else seeds, runs(text))
    if why and not wrong and not refused(text.replace('"rlx', '"')):
        return why, why
    return why, wrong


def differences(count: int, seed: int = 0, seconds: float = float("inf"), seeds: int = 6
                ) -> Iterator[tuple[int, str]]:  # fmt: skip
    """Seeds of mutants on which both differ, and last the seed -1 with the counts."""
    originals, start = list(sound().values()), time.process_time()
    done = taken = by_rule = 0
    while done < count and time.process_time() - start < seconds:
        dice = random.Random(seed + done)
        why, wrong = judged(mutated(dice.choice(originals), dice), seeds)
        done += 1
        taken += not why
        by_rule += bool(why) and why == wrong
        if bool(why) != bool(wrong):
            yield seed + done - 1, f"prove: {why or 'proved'}; machine: {wrong or 'right'}"
    yield -1, f"{done} mutants, {taken} proved, {by_rule} refused by a rule of the kernel"


# ---------------------------------------------------------------------- by hand


def changed(text: str, change: Callable[[Plan], None]) -> str:
    """A plan after a change."""
    plan = json.loads(text)
    change(plan)
    return json.dumps(plan)


def without(name: str, only: int | None = None) -> Callable[[Plan], None]:
    """A change that removes all operations of a name, or the n-th."""

    def change(plan: Plan) -> None:
        found = [(row, row[i]) for row, i in ops(plan) if row[i]["name"] == name]
        for row, op in found if only is None else found[only : only + 1]:
            row[:] = [each for each in row if each is not op]

    return change


def twice(name: str) -> Callable[[Plan], None]:
    """A change that repeats the first operation of a name."""

    def change(plan: Plan) -> None:
        row, i = next((row, i) for row, i in ops(plan) if row[i]["name"] == name)
        row.insert(i, copy.deepcopy(row[i]))

    return change


def instead(name: str, other: str) -> Callable[[Plan], None]:
    """A change of all operations of a name."""

    def change(plan: Plan) -> None:
        for row, i in ops(plan):
            if row[i]["name"] == name:
                row[i]["name"] = other

    return change


def adversarial() -> Iterator[tuple[str, str]]:
    """Plans that are nearly right, by name: of every kind of operation none, one less, one more."""
    for title, text in sound().items():
        names = sorted({row[i]["name"] for row, i in ops(json.loads(text))})
        for name in names:
            yield f"{title}: no {name}", changed(text, without(name))
            yield f"{title}: a {name} less", changed(text, without(name, 0))
            yield f"{title}: a {name} twice", changed(text, twice(name))
            if _OTHERS.get(name, name) != name:
                other = _OTHERS[name]
                yield f"{title}: {other} for {name}", changed(text, instead(name, other))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.prove.plan_mutants")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args(arguments)
    found = list(differences(given.count, given.seed, given.seconds))
    print(
        "".join(f"seed {number}: {said}\n" for number, said in [*found[:-1][:20], found[-1]]),
        end="",
    )
    return int(len(found) > 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
