"""Kinds of collectives: their rows against definitions written out, and one way to ask for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import experiments
import jaxcoll
import tensorstate
from jaxcoll.collective import Collective
from jaxcoll.errors import CollectiveError
from jaxcoll.kinds import KINDS, NAMES, Holder, kind_of, names_in, those

# Who has chunk c of n ranks (of n * n in an all_to_all) before and after. The root is rank 1; of
# several roots the last rank is another.
DEFINED = {
    "all_gather": (lambda n, r, c: r == c, lambda n, r, c: True),
    "reduce_scatter": (lambda n, r, c: True, lambda n, r, c: r == c),
    "all_reduce": (lambda n, r, c: True, lambda n, r, c: True),
    "broadcast": (lambda n, r, c: r == 1, lambda n, r, c: True),
    "reduce": (lambda n, r, c: True, lambda n, r, c: r == 1),
    "all_to_all": (lambda n, r, c: r == c // n, lambda n, r, c: r == c % n),
    "gather": (lambda n, r, c: r == c, lambda n, r, c: r == 1),
    "scatter": (lambda n, r, c: r == 1, lambda n, r, c: r == c),
    "reduce_to_some": (lambda n, r, c: True, lambda n, r, c: r in (1, n - 1)),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_who_has_what_before_and_after(name, ranks):
    root = (1 if KINDS[name].has_root else None) if not KINDS[name].has_roots else {1, ranks - 1}
    what = Collective(name, ranks, root=root)  # type: ignore[arg-type]
    for found, defined in zip(
        (what.precondition(), what.postcondition()), DEFINED[name], strict=True
    ):
        wanted = [
            [bool(defined(ranks, r, c)) for c in range(what.num_chunks)] for r in range(ranks)
        ]
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_a_kind_and_its_dual(kind):
    """Backwards, who had a chunk after has it before; copies become sums."""
    if kind.dual is None:
        assert kind.has_roots
        return
    assert kind.dual.dual is kind
    assert (kind.before, kind.after) == (kind.dual.after, kind.dual.before) or kind.is_pairwise
    assert kind.shards is kind.dual.shards
    assert kind.has_root == kind.dual.has_root
    if Holder.ALL in (kind.before, kind.after):
        assert kind.adds == (kind.before is Holder.ALL)
        assert kind.adds or kind.dual.adds
    else:
        assert not kind.adds
    assert kind.starts_at_root == kind.dual.ends_at_root


@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_phases_begin_and_end_as_the_whole(kind):
    first, last = kind.phases[0], kind.phases[-1]
    assert (first.before, last.after) == (kind.before, kind.after)
    assert first.after is last.before or not kind.has_phases
    assert any(phase.adds for phase in kind.phases) == kind.adds


def test_a_kind_for_some_is_between_those_for_one_and_for_all():
    """One root gets what it gets of the former, and all ranks as roots what the latter gives."""
    for kind in KINDS.values():
        if not kind.has_roots:
            assert (kind.for_one, kind.for_all) == (kind, kind)
            continue
        for root in range(3):
            some, one = (
                Collective(kind.name, 3, 2, root=root),
                Collective(kind.for_one.name, 3, 2, root=root),
            )
            np.testing.assert_array_equal(some.precondition(), one.precondition())
            np.testing.assert_array_equal(some.postcondition(), one.postcondition())
            assert some.for_each_root() == (one,)
        assert Collective(kind.name, 3, root=(0, 1, 2)).postcondition().all()
        assert kind.for_all.sums_for_all
        assert (kind.for_all.before, kind.for_all.adds) == (kind.before, kind.adds)


def test_every_kind_copies_moves_or_adds():
    parts = (
        those(lambda kind: kind.copies),
        those(lambda kind: kind.moves),
        those(lambda kind: kind.adds),
    )
    assert frozenset.union(*parts) == set(NAMES)
    assert sum(map(len, parts)) == len(NAMES)


@pytest.mark.parametrize("attribute", ["lax", "hlo", "nccl_tests", "nccl", "msccl", "chakra"])
def test_names_elsewhere_are_distinct(attribute):
    names = names_in(attribute)
    assert len(set(names.values())) == len(names) > 2
    assert set(names) <= set(NAMES)


@pytest.mark.parametrize("name", ["all-gather", "", None, 3, ["broadcast"]])
def test_other_names_are_refused(name):
    with pytest.raises(CollectiveError, match=r"unknown collective .*; known: all_gather, "):
        kind_of(name)


# Files that may name kinds in conditions: the second opinion, which imports nothing of ours.
_INDEPENDENT = "prove"
# Kinds of operators are other kinds, of which two are called as collectives are.
_OF_OPERATORS = re.compile(r"\bo(?:perator)?\.kind\b")
_PACKAGES = (jaxcoll, tensorstate, experiments)
# Of all of these, as that which most other kinds follow from: a map of placements, and lists.
_MOST_FILES = 20


def _sources() -> Iterator[tuple[str, str]]:
    """The path and the text of every file of the three packages."""
    for package in _PACKAGES:
        root = Path(package.__path__[0])
        for path in sorted(root.rglob("*.py")):
            yield f"{path.relative_to(root.parent)}", path.read_text(encoding="utf-8")


def test_nobody_compares_the_names_of_kinds():
    """A kind is asked what it does: a new one is a row of its table, not a hunt through files."""
    names = "|".join(NAMES)
    compared = re.compile(rf'(?:kind|collective)\w* *(?:==|!=|(?:not )?in) *\(?"(?:{names})"')
    found = [
        f"{path}:{number}: {line.strip()}"
        for path, text in _sources()
        if _INDEPENDENT not in Path(path).parts
        for number, line in enumerate(text.splitlines(), 1)
        if compared.search(line) and not _OF_OPERATORS.search(line)
    ]
    assert found == []


def test_few_files_know_the_name_of_a_kind():
    """A kind that is missing from a list that somebody typed is missed by nobody."""
    found = [path for path, text in _sources() if '"reduce_scatter"' in text]
    assert len(found) <= _MOST_FILES, found
