"""Frontiers of all sizes: the same as of single ones, in files, and by size."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import cast

import pytest

from jaxcoll.errors import FormatError, TopologyError
from jaxcoll.finder import Frontiers, find, frontiers
from tests.elsewhere import Pickling


def test_frontiers_of_all_sizes_agree_with_single_ones(tmp_path):
    seen = []
    kept = frontiers(64, 4, progress=seen.append)
    assert [each.done for each in seen] == list(range(1, 64))
    assert (seen[-1].total, seen[-1].what) == (63, "networks of 64 ranks")
    for size in (6, 27, 60, 64):
        costs = [point.cost for point in kept[size].points]
        assert costs == [point.cost for point in find(size, 4, rates=False).points]
    kept.save(tmp_path / "frontiers.json")
    assert Frontiers.load(tmp_path / "frontiers.json") == kept


def test_an_executor_finds_the_same(tmp_path):
    executor = Pickling()
    assert find(12, 4, executor=executor) == find(12, 4)
    kept = frontiers(24, 3, measure=True)
    assert frontiers(24, 3, measure=True, executor=executor) == kept
    kept.write_table(tmp_path / "here.csv")
    seen, tried = [], executor.jobs
    kept.write_table(tmp_path / "there.csv", executor=executor, progress=seen.append)
    assert (tmp_path / "there.csv").read_bytes() == (tmp_path / "here.csv").read_bytes()
    assert executor.jobs - tried == len(seen) > 10
    kept.write_table(tmp_path / "there.csv", executor=executor)
    assert executor.jobs - tried == len(seen)  # nothing was left to do


NESTED: list = ["complete", [4], []]
for _ in range(100):
    NESTED = ["line_graph", [1], [NESTED]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda said: {**said, "version": 2}, "version"),
        (lambda said: {**said, "format": "other"}, "jaxcoll frontiers"),
        (lambda said: {**said, "candidates": 3}, "list"),
        (lambda said: {**said, "candidates": [[1]]}, "6 entries"),
        (lambda said: {**said, "candidates": [[4, 1, 3, 0, 0, ["complete", [4], []]]]}, "from 1"),
        (lambda said: {**said, "candidates": [[4, 1, 3, 4, 0, ["exec", [4], []]]]}, "exec"),
        (lambda said: {**said, "candidates": [[4, 1, 3, 4, 0, ["complete", ["4"], []]]]}, "integ"),
        (lambda said: {**said, "candidates": [[4, 1, 3, 4, 0, ["complete", [], []]]]}, "not take"),
        (lambda said: {**said, "candidates": [[4, 1, 3, 4, 0, [{}, [], []]]]}, "a string"),
        (lambda said: {**said, "candidates": [[4, 1, 3, 4, 0, NESTED]]}, "at most 32 deep"),
        (
            lambda said: {**said, "candidates": [[4, 1, 3, 4, 0, ["product", [], [NESTED]]]]},
            "with 1",
        ),
        (
            lambda said: {
                **said,
                "candidates": [[4, 1, 3, 4, 0, ["line_graph", [10**9], [["diamond", [], []]]]]],
            },
            "from 1 to 256",
        ),
    ],
)
def test_saved_frontiers_that_are_not_what_was_saved_are_refused(tmp_path, change, message: str):
    path = tmp_path / "frontiers.json"
    frontiers(8, 2).save(path)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(FormatError, match=message):
        Frontiers.load(path)


def test_what_is_not_kept_is_missing_and_refused_by_name():
    kept = frontiers(8, 2)
    for size in (99, 1, "8", None, [8], math.nan):
        assert size not in kept
        assert kept.get(size) is None
        with pytest.raises(TopologyError, match=r"size|only of 2 to 8 ranks"):
            kept[cast(int, size)]


def test_a_construction_of_another_size_than_a_file_says_is_refused():
    point = find(8, 2).points[0]
    with pytest.raises(TopologyError, match="not 9 of degree 2"):
        _ = dataclasses.replace(point, size=9).digraph


def test_degrees_are_limited_before_the_search():
    for call in (find, frontiers):
        with pytest.raises(TopologyError, match="at most 256"):
            call(7, 10**6)
