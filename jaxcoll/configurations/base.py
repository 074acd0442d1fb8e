"""The one face of every search: ask for a configuration, measure it elsewhere, tell its time.

A search is written as a generator that yields the configuration to be measured next and receives
its seconds, so that it reads as the paper's pseudocode does. It is a function of the space, the
seed and the times that it was told: its state is that history, and resuming replays it.

``race`` is how a search ends: a few configurations are measured in alternation until the slower
ones are told apart. Alternation, so that a drift of the machine reaches all of them; the confidence
of a mean of n measurements shrinks with the square root of n.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, ClassVar, Self

from jaxcoll.configurations import Config
from jaxcoll.configurations.space import Space
from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks

VERSION = 1

# Standard deviations by which means must differ: of all pairs, one in about a hundred is misjudged.
CONFIDENCE = 2.6

# Yields a configuration to be measured; receives its seconds, infinite when it failed.
Steps = Generator[Config, float, None]


class Search(abc.ABC):
    """A search for the fastest configuration of one task.

    Args:
        space: what to choose from.
        seed: the seed of every random choice.

    Raises:
        TuneError: a seed other than an integer of at least 0.
    """

    name: ClassVar[str]

    def __init__(self, space: Space, *, seed: int = 0):
        self.space = checks.instance(space, Space, "space", TuneError)
        self.seed = checks.seed(seed, TuneError)
        self.times: dict[Config, list[float]] = {}
        self.failures: dict[Config, str] = {}
        self._history: list[tuple[Config, float | str]] = []
        self._steps: Steps | None = None
        self._asked: Config | None = None

    def ask(self) -> Config | None:
        """The configuration to be measured next; the same one until it is told. None when done."""
        self._start()
        return self._asked

    def tell(self, config: Config, seconds: float) -> None:
        """Reports a measured time.

        A time that is not a positive finite number counts as a failed measurement. Times of
        configurations that were not asked for are welcome, such as those of an earlier run.

        Raises:
            TuneError: the configuration is not a valid point of the space.
        """
        try:
            time = float(seconds)
        except (TypeError, ValueError, OverflowError):
            time = math.nan
        if 0 < time < math.inf:
            self._record(config, time)
        else:
            self.tell_failed(config, f"measured {checks.shown(seconds)} seconds")

    def tell_failed(self, config: Config, why: str) -> None:
        """Reports that a configuration could not be measured; it is not asked for again.

        Raises:
            TuneError: the configuration is not a valid point of the space.
        """
        self._record(config, checks.text(why, "why", TuneError))

    @property
    def best(self) -> tuple[Config, float] | None:
        """The fastest configuration and its mean seconds, of those that never failed."""
        means = {config: self.mean(config) for config in self.times}
        found = min(means, key=means.__getitem__, default=None)
        return None if found is None or math.isinf(means[found]) else (found, means[found])

    @property
    def done(self) -> bool:
        """Whether the search has nothing more to ask."""
        return self.ask() is None

    @property
    def evaluations(self) -> int:
        """How many measurements were told, failed ones among them."""
        return len(self._history)

    def mean(self, config: Config) -> float:
        """Mean measured seconds; infinite for a configuration that failed or was not measured."""
        measured = self.times.get(config)
        if config in self.failures or not measured:
            return math.inf
        return sum(measured) / len(measured)

    def options(self) -> dict[str, Any]:
        """The arguments, other than the space and the seed, that make this search again."""
        return {}

    def state(self) -> dict[str, Any]:
        """The search as JSON; ``from_state`` of its class resumes it with the same asks."""
        return {
            "search": self.name,
            "version": VERSION,
            "space": self.space.digest,
            "seed": self.seed,
            "options": self.options(),
            "history": [
                {"config": config.to_json(), "failed": told}
                if isinstance(told, str)
                else {"config": config.to_json(), "seconds": told}
                for config, told in self._history
            ],
        }

    @classmethod
    def from_state(cls, space: Space, state: Mapping[str, Any]) -> Self:
        """The search that ``state()`` described.

        Raises:
            TuneError: the state of another search, another space or a newer version, or one that
                is damaged.
        """
        checks.instance(space, Space, "space", TuneError)
        fields = _fields(state)
        if fields["search"] != cls.name:
            raise TuneError(
                f"the state was saved by the search {checks.shown(fields['search'])}, expected "
                f"one of {cls.name!r}"
            )
        if fields["version"] != VERSION:
            raise TuneError(
                f"the state has version {checks.shown(fields['version'])}, this library reads "
                f"version {VERSION}; start a new search"
            )
        if fields["space"] != space.digest:
            raise TuneError("the state belongs to another configuration space; start a new search")
        try:
            search = cls(space, seed=fields["seed"], **fields["options"])
        except TypeError as error:
            raise TuneError(f"the state's options are not those of {cls.name!r}: {error}") from None
        for entry in checks.sequence(fields["history"], "the state's history", TuneError):
            if not isinstance(entry, Mapping) or not {"seconds", "failed"} & set(entry):
                raise TuneError(
                    "the state's history has an entry that is not a measurement: "
                    f"{checks.shown(entry)}"
                )
            config = Config.from_json(entry.get("config"))
            if "failed" in entry:
                search.tell_failed(config, entry["failed"])
            else:
                search.tell(config, entry["seconds"])
        return search

    @abc.abstractmethod
    def _search(self) -> Steps:
        """The search itself."""

    def _start(self) -> None:
        if self._steps is None:
            self._steps = self._search()
            self._asked = next(self._steps, None)

    def _record(self, config: Config, told: float | str) -> None:
        if config not in self.space:
            raise TuneError(
                f"the measured configuration ({config}) is not a valid point of the space"
            )
        # Started before it is told, so that a search resumed from its history has asked the same.
        self._start()
        self._history.append((config, told))
        if isinstance(told, str):
            self.failures.setdefault(config, told)
        else:
            self.times.setdefault(config, []).append(told)
        if self._steps is not None and config == self._asked:
            seconds = math.inf if config in self.failures else told
            try:
                self._asked = self._steps.send(float(seconds))
            except StopIteration:
                self._asked = None


def _fields(state: object) -> dict[str, Any]:
    names = ("search", "version", "space", "seed", "options", "history")
    if not isinstance(state, Mapping) or any(name not in state for name in names):
        raise TuneError(
            f"a search's state must be an object with {', '.join(names)}, got {checks.shown(state)}"
        )
    if not isinstance(state["options"], Mapping):
        raise TuneError(f"the state's options must be an object, got {state['options']!r}")
    return dict(state)


# ---------------------------------------------------------------------- races


def race(
    configs: Sequence[Config],
    measured: Callable[[Config], tuple[float, int]],
    *,
    noise: float,
    rounds: int,
) -> Generator[Config, float, None]:
    """Yields the configurations to be measured next.

    Args:
        configs: the candidates.
        measured: estimated seconds of a candidate (infinite when it failed) and the number of
            measurements behind the estimate.
        noise: relative standard deviation of a measurement.
        rounds: at most this many measurements per candidate in this race.
    """
    alive = list(configs)
    for _ in range(rounds):
        # A list cannot receive the seconds, as `yield from` would have it.
        for config in alive:
            yield config
        # Those may still be the fastest whose time could be below what the best one could take.
        least, most = {}, math.inf
        for config in alive:
            seconds, count = measured(config)
            if math.isinf(seconds):
                continue
            margin = CONFIDENCE * noise / math.sqrt(max(count, 1))
            least[config] = seconds * math.exp(-margin)
            most = min(most, seconds * math.exp(margin))
        alive = [config for config, seconds in least.items() if seconds <= most]
        if len(alive) <= 1:
            return
