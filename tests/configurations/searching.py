"""A small space with a known valley, and how the tests run a search on it."""

from __future__ import annotations

import math

from jaxcoll.tune import Config, Parameter, Space

CODE = Parameter("code", ("a", "b"), "implementation")
CHUNKS = Parameter("chunks", (1, 2, 4, 8, 16), "resource")
LANES = Parameter("lanes", (1, 2, 3, 4), "resource")
SPACE = Space.product((CODE, CHUNKS, LANES), Config({"code": "a", "chunks": 1, "lanes": 1}))


def seconds_of(config: Config) -> float:
    """A smooth valley with its floor at code b, chunks 8, lanes 3."""
    chunks = math.log2(config["chunks"] / 8)  # pyright: ignore[reportOperatorIssue]
    lanes = config["lanes"] - 3  # pyright: ignore[reportOperatorIssue]
    return 1e-3 * (1 + chunks**2 + lanes**2) * (1 if config["code"] == "b" else 1.4)


def finish(search, measure=seconds_of) -> list[Config]:
    asked = []
    while (config := search.ask()) is not None:
        asked.append(config)
        search.tell(config, measure(config))
        assert len(asked) < 5000
    return asked
