"""The two searches of AutoCCL: Algorithms 1 and 2 as printed, and the authors' released code.

``Printed`` is the algorithm of the paper (NSDI 2025, section 4.3) to the letter. ``Released`` is
the one that its authors published (github.com/gbxu/autoccl, commit a0bf96b). They differ in so
much that the docstring of each says how it was read.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any, ClassVar

import numpy as np

from jaxcoll.configurations.base import Search, Steps
from jaxcoll.configurations.space import Index
from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks
from jaxcoll.tune import Config, Space, Subspace

FIRST_RATE = 0.01


class Printed(Search):
    """Algorithm 1: Algorithm 2 in every subspace in turn; the best optimum wins.

    Where the printed algorithm leaves gaps, it is read as follows:

    - Line 4 makes a configuration that was not measured the optimum; its first measurement is
      compared with itself and improves nothing (lines 10 to 12), so that ``dim`` is 1 before any
      move: the first dimension, NC, is skipped.
    - Line 12 increments ``dim`` and nothing sets it back: after the last dimension ``p[dim]`` does
      not exist, and the search of the subspace ends there, whatever ``tuned_dim`` is.
    - ``p[dim] + lr`` (line 14) would leave the grid with lr = 0.01, so that lr is read as a share
      of the dimension: the position moves by ``max(1, round(lr * values))``, at most to the last
      value.
    - lr is never negative: a dimension is searched upwards only.
    - At the last value ``p`` equals the optimum. It is measured again, as line 6 says, and a lucky
      measurement counts as an improvement; since that could go on, an optimum that did not move
      counts as no improvement.
    - "BwDelta" is the difference of bandwidths; line 8 divides it by the new bandwidth. The message
      cancels: (M/t - M/t_optimum) / (M/t) = 1 - t/t_optimum.
    - A configuration that fails has a bandwidth of 0. One that is not valid is not run, and counts
      as failed.

    Args:
        space: what to choose from.
        seed: the seed of the configurations where the descents start (Algorithm 2, line 2).
        starts: configurations to start from instead, at most one per subspace.

    Raises:
        TuneError: a start outside the space.
    """

    name: ClassVar[str] = "printed"

    def __init__(self, space: Space, *, seed: int = 0, starts: Sequence[Any] = ()):
        super().__init__(space, seed=seed)
        given = checks.members(starts, "starts", TuneError)
        self.starts = tuple(c if isinstance(c, Config) else Config.from_json(c) for c in given)
        for config in self.starts:
            space.subspace_of(config)
        self._optimum: tuple[Config, float] | None = None

    def options(self) -> dict[str, Any]:
        return {"starts": [config.to_json() for config in self.starts]}

    @property
    def best(self) -> tuple[Config, float] | None:
        """The optimum of Algorithm 1 so far, and the seconds of its best measurement."""
        return self._optimum

    def _search(self) -> Steps:
        rng = np.random.default_rng(self.seed)
        for subspace in self.space.subspaces:
            start = [int(rng.integers(count)) for count in subspace.shape]
            for config in self.starts:
                start = list(subspace.index(config) or start)
            yield from self._descend(subspace, start)

    def _descend(self, subspace: Subspace, p: list[int]) -> Steps:
        """Algorithm 2 in one subspace."""
        dims = len(subspace.resources)
        optimum, least = list(p), math.inf
        dim, tuned_dims, lr = 0, 0, FIRST_RATE
        while tuned_dims <= dims:
            seconds = yield from self._profile(subspace.config(p))
            # Line 4 has made p the optimum before it was measured, so its first measurement
            # improves nothing; later ones of the same p do not either, or luck alone would keep the
            # search going.
            if seconds < least and p != optimum:
                lr = 1 - seconds / least if math.isfinite(least) else FIRST_RATE
                optimum, least, tuned_dims = list(p), seconds, 0
            else:
                least = min(least, seconds) if p == optimum else least
                tuned_dims += 1
                dim, lr = dim + 1, FIRST_RATE
            if dim >= dims:
                return
            p = list(optimum)
            count = subspace.shape[dim]
            # Upwards only, since lr is never negative, and at most to the last value, where p is
            # the optimum again and the next turn counts as no improvement.
            p[dim] = min(count - 1, p[dim] + max(1, round(lr * count)))

    def _profile(self, config: Config) -> Generator[Config, float, float]:
        """Seconds of a configuration; keeps the optimum of Algorithm 1."""
        if config not in self.space:
            return math.inf
        seconds = yield config
        if math.isfinite(seconds) and (self._optimum is None or seconds < self._optimum[1]):
            self._optimum = config, seconds
        return seconds


NEIGHBOURS = 3
_RATE = 0.8
_KEPT = 0.75
_SLOW, _VERY_SLOW = 1.5, 3.0
_SHARE_BEFORE_SLOW = 0.1
_CONFIGS_BEFORE_VERY_SLOW = 5


class Released(Search):
    """The released coordinate descent in all subspaces in turn.

    Read from ``ext-tuner/example``: ``coordinate_descent_job.h``, ``nccl_combined_job.h``,
    ``job.h`` and ``findKCandidatesWithAxis`` of ``math.h``. It differs from the printed algorithm:

    - A dimension is searched both ways, upwards first, and dimensions follow one another in a
      circle; a descent has converged when all directions in turn improved nothing.
    - Three neighbours are measured per move. All points not measured before that lie ahead along
      the axis are ranked by their distance along it and then by their angle to it; of the nearest
      ``max(3, rate * points ahead)``, the three last are taken. So a step with a high rate goes
      far, and neighbours leave the axis.
    - The rate is 0.8 times the relative gain of the last move, none after a move without a gain.
    - A configuration counts with the mean of the fastest 75 % of its measurements.
    - After random configurations (``pretrain``), the descent starts at the best of them and, as
      often as ``starts`` allows, again at a random configuration that was not measured.
    - Subspaces advance in turn, a move each. One that was given a tenth of its budget and is 1.5
      times slower than the best of all is dropped; already after five configurations if it is 3
      times slower.

    Distances are those of the code: differences of the raw values of channels, threads and chunk
    bytes. The warm-up measurements of the code are dropped by whoever measures, here as there.

    Args:
        space: what to choose from.
        seed: the seed of the random configurations.
        pretrain: measurements of random configurations, in all subspaces together; the defaults
            of this and the next two are those of the authors' example (``run.sh``).
        train: measurements of the descents, in all subspaces together.
        repeats: measurements per configuration.
        starts: most descents per subspace.

    Raises:
        TuneError: a count below 1.
    """

    name: ClassVar[str] = "released"

    def __init__(
        self,
        space: Space,
        *,
        seed: int = 0,
        pretrain: int = 360,
        train: int = 240,
        repeats: int = 5,
        starts: int = 5,
    ):
        super().__init__(space, seed=seed)
        self.pretrain = checks.integer(pretrain, "pretrain", TuneError, least=1)
        self.train = checks.integer(train, "train", TuneError, least=1)
        self.repeats = checks.integer(repeats, "repeats", TuneError, least=1)
        self.starts = checks.integer(starts, "starts", TuneError, least=1)

    def options(self) -> dict[str, Any]:
        return {
            "pretrain": self.pretrain,
            "train": self.train,
            "repeats": self.repeats,
            "starts": self.starts,
        }

    @property
    def best(self) -> tuple[Config, float] | None:
        """The configuration whose fastest measurements have the least mean."""
        means = {config: self.smoothed(config) for config in self.times}
        found = min(means, key=means.__getitem__, default=None)
        return None if found is None or math.isinf(means[found]) else (found, means[found])

    def smoothed(self, config: Config) -> float:
        """Mean seconds of the fastest 75 % of the measurements; infinite when it failed."""
        if config in self.failures or config not in self.times:
            return math.inf
        times = sorted(self.times[config])
        kept = times[: math.ceil(_KEPT * len(times))]
        return sum(kept) / len(kept)

    def _search(self) -> Steps:
        rng = np.random.default_rng(self.seed)
        yield from self._measure([self.space.default])
        # Budgets are of all subspaces together in the example, and are shared out evenly.
        count = len(self.space.subspaces)
        pretrain = max(1, self.pretrain // count)
        train = max(1, self.train // count)
        descents = [
            _Descent(self, subspace, rng, pretrain, train) for subspace in self.space.subspaces
        ]
        while descents:
            # A copy: a descent that has ended or is hopeless leaves the list while it is walked.
            for descent in list(descents):
                moved = yield from descent.advance()
                best = self.best
                if not moved or (best is not None and descent.is_hopeless(best[1])):
                    descents.remove(descent)

    def _measure(self, configs: Sequence[Config]) -> Steps:
        for config in configs:
            for _ in range(self.repeats):
                if config in self.space and config not in self.failures:
                    yield config


class _Descent:
    """The search of one subspace (``CoDesJob``)."""

    def __init__(
        self,
        search: Released,
        subspace: Subspace,
        rng: np.random.Generator,
        pretrain: int,
        train: int,
    ):
        self.search = search
        self.subspace = subspace
        self.rng = rng
        self.pretrain = pretrain
        self.train = train
        self.unvisited = Unvisited(subspace)
        self.optimum: tuple[Index, float] | None = None
        self.measured = 0
        self.moves = self._moves()

    def advance(self) -> Generator[Config, float, bool]:
        """Measures the next configurations; False when the search of the subspace has ended."""
        indices = next(self.moves, None)
        if indices is None:
            return False
        for index in indices:
            self.unvisited.visit(index)
            config = self.subspace.config(index)
            yield from self.search._measure([config])
            self.measured += self.search.repeats
            seconds = self.search.smoothed(config)
            if self.optimum is None or seconds < self.optimum[1]:
                self.optimum = index, seconds
        return True

    def is_hopeless(self, best: float) -> bool:
        """Whether the subspace is dropped, given the best seconds of all."""
        if self.optimum is None:
            return False
        trained, seconds = self.measured - self.pretrain, self.optimum[1]
        if trained > _SHARE_BEFORE_SLOW * self.train:
            return seconds > _SLOW * best
        early = _CONFIGS_BEFORE_VERY_SLOW * self.search.repeats
        return trained > early and seconds > _VERY_SLOW * best

    def _moves(self) -> Generator[list[Index], None, None]:
        """What to measure next, a list per move."""
        random = max(1, self.pretrain // self.search.repeats)
        yield [self._random() for _ in range(min(random, self.unvisited.count))]
        for start in range(self.search.starts):
            if not start and self.optimum is not None:
                yield from self._descend(self.optimum[0])
            elif self.unvisited.count:
                index = self._random()
                yield [index]
                yield from self._descend(index)

    def _random(self) -> Index:
        return self.unvisited.draw(self.rng)

    def _descend(self, current: Index) -> Generator[list[Index], None, None]:
        """One coordinate descent (``updateStatus`` and ``surveyWithAxis``)."""
        directions = 2 * len(self.subspace.resources)
        axis, upwards, rate, fruitless = 0, True, -1.0, 0
        while fruitless < directions and self.measured < self.pretrain + self.train:
            ahead = self.unvisited.ahead(current, axis, upwards, rate, NEIGHBOURS)
            if ahead:
                yield ahead
            before = self._seconds(current)
            best = min([current, *ahead], key=self._seconds)
            if self._seconds(best) < before:
                # A good step is followed by a far one: the next neighbours are taken from this
                # share of the points ahead.
                rate = _RATE * (before - self._seconds(best)) / before if before < math.inf else -1
                current, fruitless = best, 0
            else:
                fruitless += 1
                rate = -1.0
                if upwards:
                    upwards = False
                else:
                    upwards, axis = True, (axis + 1) % len(self.subspace.resources)

    def _seconds(self, index: Index) -> float:
        return self.search.smoothed(self.subspace.config(index))


# ---------------------------------------------------------------------- neighbours


class Unvisited:
    """The points of a subspace that were not measured yet (``restCandidates``)."""

    def __init__(self, subspace: Subspace):
        self.subspace = subspace
        self.values = [np.array(p.values, float) for p in subspace.resources]
        self.visited: set[Index] = set()

    @property
    def count(self) -> int:
        """How many points remain."""
        return self.subspace.size - len(self.visited)

    def visit(self, index: Index) -> None:
        """Marks a point as measured."""
        self.visited.add(index)

    def draw(self, rng: np.random.Generator) -> Index:
        """One of the remaining points, marked as measured.

        The drawn position is moved on past measured ones; there must be one that remains.
        """
        position = int(rng.integers(self.subspace.size))
        while (index := self._unravel(position)) in self.visited:
            position = (position + 1) % self.subspace.size
        self.visit(index)
        return index

    def ahead(
        self, current: Index, axis: int, upwards: bool, rate: float, count: int
    ) -> list[Index]:
        """Up to ``count`` points: the last ones of the nearest ``max(count, rate * all ahead)``.

        Nearness is the distance along the axis, then the angle to it: in a plane across the axis,
        the distance from the axis.
        """
        if not self.subspace.shape:
            return []
        step = 1 if upwards else -1
        end = self.subspace.shape[axis] if upwards else -1
        planes = range(current[axis] + step, end, step)
        area = self.subspace.size // self.subspace.shape[axis]
        # Measured points of each plane across the axis. Counting them finds the planes that hold
        # the wanted ranks, so only those are sorted, and not all the points ahead.
        gone = [0] * self.subspace.shape[axis]
        for index in self.visited:
            gone[index[axis]] += 1
        remaining = sum(area - gone[plane] for plane in planes)
        last = min(remaining, max(count, int(rate * remaining)))
        wanted, found = range(max(0, last - count), last), []
        passed = 0
        for plane in planes:
            here = area - gone[plane]
            ranks = [rank - passed for rank in wanted if passed <= rank < passed + here]
            if ranks:
                ranked = self._ranked(current, axis, plane, max(ranks) + 1)
                found += [ranked[rank] for rank in ranks]
            passed += here
        return found[::-1]

    def _ranked(self, current: Index, axis: int, plane: int, count: int) -> list[Index]:
        """The ``count`` remaining points of a plane that are nearest to the axis, in order."""
        shape = tuple(1 if d == axis else n for d, n in enumerate(self.subspace.shape))
        squares = np.zeros(shape)
        for d, values in enumerate(self.values):
            if d != axis:
                along = [1] * len(shape)
                along[d] = -1
                squares = squares + ((values - values[current[d]]) ** 2).reshape(along)
        for index in self.visited:
            if index[axis] == plane:
                squares[tuple(0 if d == axis else i for d, i in enumerate(index))] = np.inf
        flat = squares.ravel()
        nearest = np.arange(flat.size)
        if count < flat.size:
            # Partition first: a plane may hold thousands of points and a few are wanted. Sorting
            # the chosen positions keeps ties in the order of the whole sort.
            nearest = np.sort(np.argpartition(flat, count - 1)[:count])
        nearest = nearest[np.argsort(flat[nearest], kind="stable")][:count]
        indices = (np.unravel_index(int(i), shape) for i in nearest)
        return [
            tuple(plane if d == axis else int(i) for d, i in enumerate(index)) for index in indices
        ]

    def _unravel(self, position: int) -> Index:
        return tuple(int(i) for i in np.unravel_index(position, self.subspace.shape))
