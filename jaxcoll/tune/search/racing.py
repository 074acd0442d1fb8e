"""Racing: a few configurations measured in alternation until the slower ones are told apart.

Alternation, so that a drift of the machine reaches all of them; the confidence of a mean of n
measurements shrinks with the square root of n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence

from jaxcoll.tune.spaces.config import Config

# Standard deviations by which means must differ: of all pairs, one in about a hundred is misjudged.
CONFIDENCE = 2.6


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
        for config in alive:  # noqa: UP028
            yield config
        alive = _survivors(alive, measured, noise)
        if len(alive) <= 1:
            return


def _survivors(
    configs: Sequence[Config], measured: Callable[[Config], tuple[float, int]], noise: float
) -> list[Config]:
    """Those that may still be the fastest."""
    least, most = {}, math.inf
    for config in configs:
        seconds, count = measured(config)
        if math.isinf(seconds):
            continue
        margin = CONFIDENCE * noise / math.sqrt(max(count, 1))
        least[config] = seconds * math.exp(-margin)
        most = min(most, seconds * math.exp(margin))
    return [config for config, seconds in least.items() if seconds <= most]
