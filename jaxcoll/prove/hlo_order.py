"""The collectives of a whole HLO program: every rank meets them in one order, without deadlock.

All ranks run the same text, so they reach its collectives in the same order, with two exceptions.
(1) Ranks take different branches: a conditional or a loop that holds collectives depends on a value
that is not the same on all ranks. (2) Several collectives run at once: between a start and its done
others begin, on other streams, and a device may run them in another order than its neighbour. Then
ranks can wait in a circle if groups and ranks form one: rows and columns of a mesh are enough,
which have one rank in common each (ROCm/rccl#2191). Collectives of one group belong to one
communicator, which keeps the order in which they were started. Those of a TPU need no core of their
own, and never wait in this way.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from jaxcoll.prove.answers import NotProved, NotRead
from jaxcoll.prove.hlo import COLLECTIVES, Group, Instruction, Module, base, groups

_CALLS = ("fusion", "call", "async-start")
_UNLIKE = ("rng", "infeed", "recv", "recv-done", "custom-call",
           "collective-permute", "reduce-scatter", "all-to-all", "ragged-all-to-all")  # fmt: skip
_STAYS = ("convert", "copy", "bitcast", "reshape", "and", "remainder")  # never negative results
_MOST_DEEP, _MOST_ITERATIONS, _MOST_FOLLOWED = 64, 64, 2**21

# Whether a value is the same on all ranks; for a tuple, one per element. Zeros and a rank's own
# number, which is not negative, are also recognised: loops of one iteration are written min(rank,
# 0) + 1.
Same = bool | str | tuple
_PLACE = re.compile("[0-9]{1,9}")
ZERO, RANK = "zero", "rank"


class Met(NamedTuple):
    """A collective that ranks meet, with its groups."""

    each: Instruction
    groups: frozenset[Group]

    @property
    def key(self) -> tuple:
        return base(self.each), self.groups, self.each.said("source_target_pairs")


def check_order(module: Module) -> list[Met]:
    """The collectives of a program in the order in which ranks meet them.

    Raises:
        NotProved: ranks may reach different collectives, wait in a circle, or begin what they do
            not end; the error names the instruction.
        NotRead: the program has sends and receives, whose partners the text does not name.
    """
    walk = _Walk(module)
    walk.run(module.entry, (), walk.parameters(), 0)
    return walk.met


class _Walk:
    def __init__(self, module: Module):
        self.module = module
        self.met: list[Met] = []
        self.holds: dict[str, bool] = {}
        self.followed = 0

    def parameters(self) -> list[Same]:
        """Whether each parameter of the program is the same on all ranks, by its sharding."""
        found = [e for e in self._body(self.module.entry) if e.opcode == "parameter"]
        return [each.said("sharding") == "{replicated}"
                for each in sorted(found, key=lambda each: each.parameter)]  # fmt: skip

    def _body(self, name: str) -> list[Instruction]:
        if name not in self.module.computations:
            raise NotRead(f"no computation is called {name[:60]}")
        return self.module.computations[name]

    def _has_collectives(self, name: str, deep: int = 0) -> bool:
        if deep > _MOST_DEEP:
            raise NotRead(f"computations call each other more than {_MOST_DEEP} deep")
        if name not in self.holds:
            self.holds[name] = any(
                base(each) or any(self._has_collectives(c, deep + 1) for c in _called(each))
                for each in self._body(name) if each.opcode != "fusion")  # fmt: skip
        return self.holds[name]

    # ------------------------------------------------------------------ the order

    def run(self, name: str, open_: Sequence[Met], same: list[Same], deep: int) -> Same:
        """Meet the collectives of a computation, while others may be running.

        Args:
            open_: the collectives that are running.
            same: whether each of its parameters is the same on all ranks.

        Returns:
            Whether its result is the same on all ranks.
        """
        if deep > _MOST_DEEP:
            raise NotRead(f"computations call each other more than {_MOST_DEEP} deep")
        values: dict[str, Same] = {}
        under_way: dict[str, list[Met]] = {}
        for each in self._body(name):
            self.followed += 1
            if self.followed > _MOST_FOLLOWED:
                raise NotRead(f"more than {_MOST_FOLLOWED} instructions, calls among them")
            before = len(self.met)
            now = [*open_, *itertools.chain.from_iterable(under_way.values())]
            try:
                values[each.name] = self._one(each, now, values, same, deep)
            except (LookupError, TypeError) as error:
                raise NotRead(f"{each.place} lacks something: {error}"[:200]) from None
            if each.opcode in ("send", "recv") and "is_host_transfer" not in each.after:
                raise NotRead(f"{each.place}: partners of sends are not in the text")
            if each.opcode.endswith("-start"):
                under_way[each.name] = self.met[before:]  # several for a group launch
            elif each.opcode.endswith(("-done", "-update")):
                self._ends(each, under_way)
        left = next((met for row in under_way.values() for met in row), None)
        if left is not None:
            raise NotProved(f"{left.each.place} is begun and nothing waits for its end")
        return values[self.module.roots[name]]

    def _ends(self, each: Instruction, under_way: dict[str, list[Met]]) -> None:
        first = each.operands[0] if each.operands else ""
        if first not in under_way:
            if each.opcode.rpartition("-")[0] in (*COLLECTIVES, "async"):
                raise NotProved(f"{each.place} waits for {first[:60]}, which was not begun here")
            return
        row = under_way.pop(first)
        if each.opcode.endswith("-update"):
            under_way[each.name] = row

    def _one(self, each: Instruction, now: list[Met], values: dict[str, Same],
             same: list[Same], deep: int) -> Same:  # fmt: skip
        """Follow an instruction; return whether its result is the same on all ranks."""
        if each.opcode == "parameter":
            return same[each.parameter] if each.parameter < len(same) else False
        if each.opcode == "constant":
            return ZERO if each.inside.strip() == "0" else True
        if each.opcode in ("partition-id", "replica-id"):
            return RANK
        given = [_part(values, operand) for operand in each.operands]
        if base(each):
            found = groups(self.module, each)
            met = Met(each, frozenset(tuple(sorted(group)) for group in found))
            self._check_circles([*now, met])
            self.met.append(met)
            whole = len(found) == 1 and len(found[0]) == self.module.ranks
            return whole and base(each) in ("all-reduce", "all-gather", "collective-broadcast")
        if each.opcode in _CALLS:
            name = (each.said("calls") or each.said("to_apply") or "").lstrip("%")
            if each.opcode == "fusion" and name not in self.module.computations:
                return False  # the text was trimmed; it holds no collectives
            return self.run(name, now, given, deep + 1) if name else False
        if each.opcode == "while":
            return self._loop(each, now, given[0], deep)
        if each.opcode == "conditional":
            return self._branches(each, now, given, deep)
        if each.opcode == "get-tuple-element":
            return _element(given[0], each.numbers("index")[0])
        if each.opcode == "tuple":
            return tuple(given)
        if each.opcode == "minimum" and set(given) == {ZERO, RANK}:
            return ZERO
        if each.opcode in _STAYS and RANK in given:
            return all(_all(same) or same == RANK for same in given) and RANK
        return each.opcode not in _UNLIKE and all(map(_all, given))

    def _loop(self, each: Instruction, now: list[Met], given: Same, deep: int) -> Same:
        body, condition = each.named("body"), each.named("condition")
        state, before = given, list(self.met)
        for _ in range(_MOST_ITERATIONS):  # until the values that stay the same are known
            self.met = list(before)
            joined = _both(state, self.run(body, now, [state], deep + 1))
            if joined == state:
                break
            state = joined
        else:
            state = False
        goes_on = self.run(condition, now, [state], deep + 1)
        has = self._has_collectives(body) or self._has_collectives(condition)
        if has and not _all(goes_on) and "known_trip_count" not in each.after:
            raise NotProved(
                f"{each.place} holds collectives, and its number of iterations is not known nor "
                "shown to be the same on all ranks"
            )
        return state

    def _branches(self, each: Instruction, now: list[Met], given: list[Same], deep: int) -> Same:
        names = _called(each)
        rows, results = [], []
        for name, argument in zip(names, given[1:], strict=False):
            begin = len(self.met)
            results.append(self.run(name, now, [argument], deep + 1))
            rows.append(self.met[begin:])
            del self.met[begin:]
        if len(rows) < len(names):
            raise NotRead(f"{each.place}: {len(names)} branches and fewer operands")
        longest = max(rows, key=len, default=[])
        differ = next((n for n, row in zip(names, rows, strict=True)
                       if [m.key for m in row] != [m.key for m in rows[0]]), None)  # fmt: skip
        if differ is not None and not _all(given[0]):
            raise NotProved(
                f"{each.place}: {names[0][:60]} and {differ[:60]} hold different collectives, and "
                f"its choice may differ by rank; {longest[0].each.place} is one"
            )
        self.met += longest
        return _all(given[0]) and all(map(_all, results))

    # ------------------------------------------------------------------ under way at once

    def _check_circles(self, open_: list[Met]) -> None:
        """Refuse circles among the groups of running collectives and their ranks."""
        if len(open_) < 2 or self.module.is_tpu:
            return
        different: dict[Group, Met] = {}
        for met in open_:
            for group in met.groups:
                if len(group) > 1:
                    different.setdefault(group, met)
        top: dict[object, object] = {}

        def root(at: object) -> object:
            while top.setdefault(at, at) != at:
                at = top[at]
            return at

        for group, met in different.items():
            for rank in group:
                a, b = root(("rank", rank)), root(group)
                if a == b:
                    others = ", ".join(other.each.place for other in open_[:-1][:2])
                    raise NotProved(
                        f"{open_[-1].each.place} begins while {others} is under way; their groups, "
                        f"{str(group)[:40]} of {met.each.name[:60]} for one, join ranks in a "
                        "circle: a rank may run one first and its neighbour another, and all wait",
                        rank,
                    )  # fmt: skip
                top[a] = b


def _called(each: Instruction) -> list[str]:
    """The computations of a call, loop or conditional; not those that add two numbers."""
    if each.opcode == "while":
        return [each.named("body"), each.named("condition")]
    if each.opcode == "conditional":
        listed = each.said("branch_computations")
        if listed is not None:
            return [name.strip().lstrip("%") for name in listed.strip("{}").split(",")]
        return [each.named("true_computation"), each.named("false_computation")]
    name = each.said("calls") or (each.said("to_apply") if each.opcode == "call" else None)
    return [name.lstrip("%")] if name else []


def _part(values: dict[str, Same], operand: str) -> Same:
    """The entry of an operand; ``name#2`` is the third part of a tuple."""
    name, *path = operand.split("#")
    same = values.get(name, False)
    for at in path:
        same = _element(same, int(at) if _PLACE.fullmatch(at) else 0)
    return same


def _element(same: Same, at: int) -> Same:
    return same[at] if isinstance(same, tuple) and at < len(same) else _all(same)


def _all(same: Same) -> bool:
    return all(map(_all, same)) if isinstance(same, tuple) else same in (True, ZERO)


def _both(a: Same, b: Same) -> Same:
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return tuple(map(_both, a, b))
    return a if a == b else _all(a) and _all(b)
