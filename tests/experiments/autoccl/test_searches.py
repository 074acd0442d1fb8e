"""Every compared search, and this library's: one face, seeded, resumable."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.autoccl import searches
from experiments.autoccl.searches import SEARCHES, Afnfa, Exhaustive, Printed, Released
from jaxcoll.errors import TuneError
from jaxcoll.tune import Config, Fitted, Space, Subspace
from tests.configurations.searching import SPACE, finish, seconds_of
from tests.experiments.autoccl.searches import make


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_asks_for_points_of_the_space_and_ends(name):
    search = make(name)
    assert search.best is None
    assert search.ask() == search.ask()
    asked = finish(search)
    assert search.done
    assert search.ask() is None
    assert search.evaluations == len(asked)
    assert all(config in SPACE for config in asked)
    found, seconds = search.best or (SPACE.default, math.inf)
    assert found in search.times
    assert math.isclose(seconds, seconds_of(found), rel_tol=0.1)


@pytest.mark.parametrize("name", SEARCHES)
@settings(max_examples=8)
@given(seed=st.integers(0, 3), share=st.floats(0, 1), data=st.data())
@pytest.mark.slow_members("afnfa", "fitted")
def test_a_resumed_search_asks_the_same(name, seed, share, data):
    """Through JSON, with failures and times that nobody asked for among the history."""
    search = make(name, seed)
    stop = int(share * 25)
    for step in range(stop):
        config = search.ask()
        if config is None:
            break
        if data.draw(st.sampled_from([False, False, False, True])):
            search.tell_failed(config, "no memory")
        else:
            search.tell(config, seconds_of(config) * (1 + 0.01 * (step % 3)))
        if step == 3:
            search.tell(SPACE.default, 5e-3)
    resumed = SEARCHES[name].from_state(SPACE, json.loads(json.dumps(search.state())))
    assert resumed.state() == search.state()
    assert resumed.best == search.best
    assert finish(resumed) == finish(search)
    assert resumed.best == search.best


@pytest.mark.parametrize("name", ["fitted", "printed", "released", "afnfa"])
def test_the_seed_decides(name):
    def asked(seed: int) -> list[Config]:
        return finish(make(name, seed))

    assert asked(1) == asked(1)
    assert any(asked(seed) != asked(1) for seed in (2, 3, 4))


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, None, "soon"])
def test_times_that_are_none_count_as_failures(name, bad):
    search = make(name)
    first = search.ask()
    assert first is not None
    search.tell(first, bad)
    assert "measured" in search.failures[first]
    assert search.best is None
    asked = finish(search)
    assert first not in asked
    assert search.best is not None
    assert search.best[0] != first


@pytest.mark.parametrize("name", SEARCHES)
def test_a_space_where_everything_fails_ends_without_a_best(name):
    search, count = make(name), 0
    while (config := search.ask()) is not None:
        search.tell_failed(config, "crashed")
        count += 1
        assert count < 500
    assert search.best is None
    assert set(search.failures.values()) == {"crashed"}


@pytest.mark.parametrize("name", SEARCHES)
def test_invalid_points_are_never_asked_for(name):
    space = SPACE.pruned(lambda c: c["chunks"] != 8 and c["lanes"] != 2)
    assert all(config in space for config in finish(make(name, space=space)))


@pytest.mark.parametrize("name", SEARCHES)
def test_a_space_of_one_configuration(name):
    one = Config({"code": "native"})
    search = make(name, space=Space((Subspace(one),), one))
    finish(search, lambda _: 1e-3)
    assert search.best is not None
    assert search.best[0] == one


def test_times_of_other_spaces_are_refused():
    search = make("fitted")
    with pytest.raises(TuneError, match="not a valid point"):
        search.tell(SPACE.default.replace(chunks=3), 1.0)
    with pytest.raises(TuneError, match="why must be a string"):
        search.tell_failed(SPACE.default, None)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"search": "psychic"}, "was saved by the search"),
        ({"version": 99}, "version 99"),
        ({"space": "0"}, "another configuration space"),
        ({"options": {"speed": 1}}, "options are not those"),
        ({"options": []}, "options must be an object"),
        ({"history": [1]}, "that is not a measurement: 1"),
        ({"history": [{"config": {"x": 1}, "seconds": 1}]}, "not a valid point"),
        ({"history": 3}, "must be a sequence"),
        ({"seed": -1}, "seed must be an integer"),
    ],
)
def test_damaged_states_are_refused_by_name(change, message):
    with pytest.raises(TuneError, match=message):
        Fitted.from_state(SPACE, {**make("fitted").state(), **change})


def test_states_that_are_none_are_refused():
    for state in (None, [], {}, {"search": "fitted"}):
        with pytest.raises(TuneError, match="state must be an object"):
            Fitted.from_state(SPACE, state)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TuneError, match="was saved by the search 'fitted'"):
        Printed.from_state(SPACE, make("fitted").state())


@pytest.mark.parametrize(
    ("make_bad", "message"),
    [
        (lambda: Fitted(SPACE, seed=-1), "seed"),
        (lambda: Fitted(SPACE, budget=0), "budget"),
        (lambda: Fitted(SPACE, budget=50, extended=40), "extended"),
        (lambda: Fitted(SPACE, noise=0), "noise"),
        (lambda: Fitted(SPACE, first=[Config({"x": 1})]), "first is not a point"),
        (lambda: Printed(SPACE, starts=[Config({"x": 1})]), "outside the configuration space"),
        (lambda: Released(SPACE, repeats=0), "repeats"),
        (lambda: Exhaustive(SPACE, repeats=0), "repeats"),
        (lambda: Afnfa(SPACE, share=0), "share"),
        (lambda: searches.global_configuration(SPACE, {}), "at least one task"),
        (lambda: searches.global_configuration(SPACE, {"x": []}), "at least two"),
    ],
)
def test_bad_options_are_refused(make_bad, message):
    with pytest.raises(TuneError, match=message):
        make_bad()
