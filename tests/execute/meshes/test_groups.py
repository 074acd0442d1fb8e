"""Groups of collectives, read in all spellings."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcoll.aot.hlo import Instruction, replica_groups
from jaxcoll.errors import FormatError


def collective(groups: str) -> Instruction:
    attributes = f"channel_id=1, replica_groups={groups}, use_global_device_ids=true, to_apply=%add"
    return Instruction("all-reduce.1", "all-reduce", "f32[4]", ("x",), attributes)


@st.composite
def lines(draw):
    """A mesh and some of its axes, and the groups along them by slicing, one after another."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    along = draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1))
    places = np.arange(math.prod(sizes)).reshape(sizes)
    rest = [range(n) if axis not in along else [slice(None)] for axis, n in enumerate(sizes)]
    every = np.meshgrid(*[np.arange(len(r)) for r in rest], indexing="ij")
    picked = zip(*(one.ravel() for one in every), strict=True)
    groups = [places[tuple(r[int(i)] for r, i in zip(rest, at, strict=True))] for at in picked]
    return sizes, sorted(along), [np.ravel(group).tolist() for group in groups]


@given(lines())
def test_every_spelling_says_the_same(case):
    sizes, along, groups = case
    devices = math.prod(sizes)
    listed = "{" + ",".join("{" + ",".join(map(str, group)) + "}" for group in groups) + "}"
    order = [axis for axis in range(len(sizes)) if axis not in along] + along
    shape, sides = f"[{len(groups)},{len(groups[0])}]", ",".join(map(str, sizes))
    counted = f"{shape}<=[{sides}]T({','.join(map(str, order))})"
    named = ",".join(f"'x{axis}'={size}" for axis, size in enumerate(sizes))
    of_mesh = f"mesh[{named}] {{{','.join(repr(f'x{axis}') for axis in along)}}}"
    for text in (listed, counted, of_mesh):
        assert replica_groups(collective(text), devices).tolist() == groups


def test_short_spellings():
    for text, groups in [
        ("{}", [[0, 1, 2, 3]]),
        ("[2,2]<=[4]", [[0, 1], [2, 3]]),
        ("mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}", [[0, 2], [1, 3]]),
        ("mesh['a'=2,'b'=2], device_ids=([4]) {'a','b'}", [[0, 1, 2, 3]]),
    ]:
        assert replica_groups(collective(text), 4).tolist() == groups
    without = Instruction("all-gather.1", "all-gather", "f32[4]", ("x",), "dimensions={0}")
    assert replica_groups(without, 2).tolist() == [[0, 1]]


@pytest.mark.parametrize("text", ["{{0,1},{2}}", "mesh['a'=4] {'a':(1)2}", "[2,2]<=", "<none>"])
def test_groups_that_cannot_be_read(text):
    with pytest.raises(FormatError, match=r"groups"):
        replica_groups(collective(text), 4)
