"""Figures of notes are looked up in rows; a note that names none is left out or refused."""

from __future__ import annotations

import re

import pytest

from experiments.config import EXPERIMENTS, configuration
from experiments.recording import load
from experiments.study import ConfigError, NoRow, fill, filled

ROWS = [
    {"network": "ring", "size": 4, "GB/s": 1.25, "who": "tacos"},
    {"network": "ring", "size": 8, "GB/s": 2.5, "who": "ring"},
    {"network": "mesh", "size": 4, "GB/s": None},
]


@pytest.mark.parametrize(
    ("note", "text"),
    [
        ("no field", "no field"),
        ("{GB/s | network=ring; size=8}", "2.5"),
        ("{GB/s | who=tacos | .3f} GB/s", "1.250 GB/s"),
        ("{max: GB/s |} of {min: GB/s | | .0f}", "2.5 of 1"),
        ("{mean: GB/s | network=ring | .3f}", "1.875"),
        ("{list: GB/s | network=ring | .1f} and {list: who |}", "1.2, 2.5 and tacos, ring"),
        ("{who | size=8}", "ring"),
    ],
)
def test_fields_are_filled(note, text):
    assert fill(note, ROWS) == text


@pytest.mark.parametrize(
    "note", ["{GB/s | network=star}", "{us | network=ring}", "{GB/s | size=5}"]
)
def test_a_row_of_another_size_is_left_out(note):
    with pytest.raises(NoRow):
        fill(note, ROWS)
    assert filled([f"a {note}", "b {GB/s | size=8}"], ROWS) == ["b 2.5"]


@pytest.mark.parametrize(
    ("note", "message"),
    [
        ("{GB/s}", "a field of a note is"),
        ("{GB/s | a | b | c}", "a field of a note is"),
        ("{GB/s | network}", "a condition of a note is key=value"),
        ("{GB/s | network=ring}", "2 rows match"),
    ],
)
def test_what_names_no_figure_is_refused(note, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        fill(note, ROWS)


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "quickstart"])
def test_every_note_can_be_filled_from_the_rows_of_a_size(name):
    """A column or row that was renamed would silently drop the note otherwise."""
    study = load(name)
    config = configuration(name, "paper")
    for note in getattr(config, "notes", ()):
        rows = [run.rows for run in study.values()]
        said = [text for each in rows for text in filled([note], each)]
        assert said or "paper" not in study, note
