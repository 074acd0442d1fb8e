"""Tables that are gone on with: no job twice, the same bytes, other tables refused."""

from __future__ import annotations

import pytest

from jaxcoll.errors import FormatError
from jaxcoll.io.files import completed

COLUMNS = ("n", "square", "note")
JOBS = {(str(n),): n for n in range(5)}


class Squares:
    """Rows of a number, which stop at one."""

    def __init__(self, stop: int | None = None):
        self.stop, self.asked = stop, []

    def __call__(self, n: int):
        if n == self.stop:
            raise KeyboardInterrupt
        self.asked.append(n)
        return [{"n": n, "square": n * n / 3, "note": None} for _ in range(1 + n % 2)]


@pytest.mark.parametrize("stop", range(5))
def test_a_table_made_in_two_runs_is_that_of_one(tmp_path, stop):
    whole, parted = tmp_path / "whole.csv", tmp_path / "parted.csv"
    expected = list(completed(whole, COLUMNS, JOBS, Squares()))
    assert [key for key, _ in expected] == list(JOBS)
    assert expected[2][1] == [{"n": "2", "square": "1.3333333333333333", "note": ""}]
    with pytest.raises(KeyboardInterrupt):
        list(completed(parted, COLUMNS, JOBS, Squares(stop)))
    rest = Squares()
    assert list(completed(parted, COLUMNS, JOBS, rest)) == expected
    assert rest.asked == list(range(stop, 5))
    assert parted.read_bytes() == whole.read_bytes()


def test_rows_that_come_later_survive_a_second_interruption(tmp_path):
    table = tmp_path / "table.csv"
    last = {("4",): 4}
    list(completed(table, COLUMNS, last, Squares()))
    with pytest.raises(KeyboardInterrupt):
        list(completed(table, COLUMNS, JOBS, Squares(2)))
    rest = Squares()
    list(completed(table, COLUMNS, JOBS, rest))
    assert rest.asked == [2, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected the columns n, square, note, got none"),
        ("n,cube,note\n1,1,\n", "got n, cube, note; give another file"),
        ("n,square,note\n1\n", "line 2 must have 3 cells"),
        ("n,square,note\n1,1,,4\n", "line 2 must have 3 cells"),
        ('n,square,note\n1,"1\n', "not CSV|3 cells"),
    ],
)
def test_another_table_is_refused_and_left(tmp_path, text, message):
    table = tmp_path / "table.csv"
    table.write_text(text)
    with pytest.raises(FormatError, match=message):
        list(completed(table, COLUMNS, JOBS, Squares()))
    assert table.read_text() == text
