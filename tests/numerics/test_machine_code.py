"""Machine code of the installation: which call it may serve, and that first answers have it."""

from __future__ import annotations

import importlib
import inspect
import itertools
from typing import NamedTuple

import numba
import numpy as np
import pytest

from experiments.benchmarks.default.cold import first_answers, watched
from jaxcoll.numerics import machine_code
from jaxcoll.numerics.build_machine_code import numba_types
from jaxcoll.numerics.compiled import Kernel, kernel
from jaxcoll.numerics.machine_code import is_version_for, kind, signatures, symbol, tokens


class Pair(NamedTuple):
    first: np.ndarray
    second: np.ndarray


class Other(NamedTuple):
    first: np.ndarray
    second: np.ndarray


def kept(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


INTEGERS, SQUARE = np.arange(6), np.ones((4, 4), np.int32)
KNOWN = [
    *(0, -(2**63), 2**63 - 1, True, False, 1.5),
    *(np.int64(1), np.uint64(1), np.int32(1), np.float32(1), np.bool_(True)),
    *(INTEGERS, kept(np.arange(6)), INTEGERS[::2], INTEGERS.astype(np.uint64), np.zeros(0)),
    *(
        SQUARE,
        SQUARE.T,
        np.asfortranarray(np.ones((2, 3))),
        SQUARE[:, 1:],
        np.ones((2, 2, 2), bool),
    ),
    *((), (1, 2), (1, 2.0), (INTEGERS, (INTEGERS, 1)), Pair(INTEGERS, INTEGERS)),
    *(Pair(INTEGERS, SQUARE), Other(INTEGERS, INTEGERS), (INTEGERS, INTEGERS)),
]
UNALIGNED = np.frombuffer(bytearray(17), np.int64, offset=1)
UNKNOWN = [
    *(2**63, -(2**63) - 1, 2**70, "text", None, 1j, UNALIGNED, np.arange(3, dtype=">i4")),
    *(np.zeros(2, "i4,i4"), np.array(["a"]), np.array([None]), np.datetime64(1, "s"), np.arange),
]


@pytest.mark.parametrize("argument", KNOWN, ids=str)
def test_signatures_say_what_numba_says(argument):
    assert list(numba_types(iter(tokens(argument)))) == [numba.typeof(argument)]


@pytest.mark.parametrize("argument", UNKNOWN, ids=str)
def test_what_no_version_takes(argument):
    assert tokens(argument) == ["?"]
    assert "?" in tokens((1, argument))


def test_kinds_tell_apart_what_signatures_do():
    for one, other in itertools.combinations([*KNOWN, *UNKNOWN], 2):
        if kind(one) == kind(other):
            assert tokens(one) == tokens(other)


def test_a_version_that_does_not_write_takes_arrays_that_could_be_written_to():
    given, listed = tokens((INTEGERS, SQUARE)), tokens((kept(np.arange(2)), SQUARE))
    assert is_version_for(listed, given)
    assert is_version_for(given, given)
    assert not is_version_for(given, listed)
    assert not is_version_for(listed, given[:-1])
    assert not is_version_for(tokens((SQUARE, SQUARE)), given)


BASE = """
_MOST = {most}

@kernel()
def inner(x):
    '''{doc}'''
    return x {sign} _MOST

@kernel()
def outer(x):
    return inner(x) * 2
"""


def hashed(**changed: str) -> str:
    space = {"kernel": kernel, "__name__": "made"}
    exec(BASE.format(**{"most": "3", "sign": "+", "doc": "As it was.", **changed}), space)
    return space["outer"].source_hash


def test_a_kernel_is_another_when_what_it_is_compiled_from_is():
    base = hashed()
    assert hashed(doc="In other words.\n\n    And more lines.") == base
    changes = [hashed(most="4"), hashed(most="3.0"), hashed(sign="-"), hashed(most="(3, 4)")]
    assert len({base, *changes}) == 5


def listed_kernel(name: str) -> Kernel:
    module, _, own = name.rpartition(".")
    return getattr(importlib.import_module(module), own)


def test_the_list_is_of_kernels_and_their_arguments():
    assert len(signatures()) >= 44  # those of three first answers
    for name, versions in signatures().items():
        assert len(set(versions)) == len(versions)
        arguments = len(inspect.signature(listed_kernel(name).__wrapped__).parameters)
        for signature in versions:
            types = list(numba_types(iter(signature.split())))  # whose named tuples are current
            assert len(types) == arguments, name


def is_current() -> bool:
    """Whether the library has every listed version of the kernels as they stand here."""
    return all(
        hasattr(machine_code.library(), symbol(name, listed_kernel(name).source_hash, signature))
        for name, versions in signatures().items()
        for signature in versions
    )


@pytest.mark.parametrize("name", first_answers())
@pytest.mark.in_every_run("README", "dgx_h100(2)")
def test_first_answers_compile_nothing(name):
    """Of at most 50 versions in 44 kernels, none waits for Numba and none runs as Python."""
    if machine_code.library() is None:
        pytest.skip("without machine code a first answer takes half a minute")
    found = watched(first_answers()[name], asked=True)
    assert found["unlisted"] == []  # scripts/bench cold --unlisted prints lines to add
    if is_current():  # until a kernel is edited
        assert len(found["uses"]) <= 44
        assert sum(installed for installed, *_ in found["uses"].values()) <= 50
        assert all(versions == 0 for _, versions, _ in found["uses"].values())
        assert all(seconds == 0 for *_, seconds in found["uses"].values())
        assert not found["numba"]
