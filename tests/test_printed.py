"""Claims of pages are held against what is printed, in the digits that they have."""

from __future__ import annotations

import contextlib
import io

import pytest

from tests.printed import false_claims, marked, numbers, separated, unsaid


@pytest.mark.parametrize(
    ("claimed", "printed", "missing"),
    [
        ("85.656", "85.65609", []),
        ("85.656", "85.6566", ["85.656"]),
        ("4.2 ms", "4.295 ms  87.4 %", ["4.2"]),
        ("4.3 ms", "4.295 ms  87.4 %", []),
        ("4032", "4031.6", []),
        ("251,658,240", "251658240", []),
        ("251658240 of 3", "251,658,240, 3.", []),
        ("[28.]", "[28.]", []),
        ("7/600000000000", "7/600000000001", ["600000000000"]),
        ("4 ranks", "16 ranks, v4, x4", ["4"]),
        ("nothing", "at all", []),
    ],
)
def test_a_number_holds_where_a_printed_one_rounds_to_it(claimed, printed, missing):
    assert unsaid(claimed, printed) == missing


def test_names_hold_no_numbers():
    assert numbers("v4, h100:2, torus 2x4, 1e-3, 5.") == ["2", "2", "1e-3", "5"]


CODE = """
count = len("abcd")  # {count}: one for each
rate = 2.5  # of 4 lanes
for _ in range(2):
    print(
        "rate", rate
    )  # rate {rate}
print("seven")
"""


def run(code: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(marked(code), {})
    return printed.getvalue()


def test_marked_code_prints_what_it_printed_beside_its_claims():
    code = CODE.format(count=4, rate="2.50")
    output, printed = separated(run(code))
    assert output == "4\nrate 2.5\nrate 2.5\nseven\n"
    assert printed == {2: "4\n", 5: "rate 2.5\n"}
    assert list(false_claims(code, printed)) == []


@pytest.mark.parametrize(("count", "rate", "wrong"), [(5, 2.5, "5"), (4, 2.4, "2.4")])
def test_a_false_comment_is_named(count, rate, wrong):
    code = CODE.format(count=count, rate=rate)
    (told,) = false_claims(code, separated(run(code))[1])
    assert f"says {wrong} and printed" in told
