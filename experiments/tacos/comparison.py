"""Settings of the comparing studies: networks, algorithms, sizes, and the paper's numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from experiments.config import at_least, one_of
from experiments.errors import ConfigError
from experiments.paper import IDEAL
from experiments.tacos.claims import PaperMean
from experiments.tacos.measure import AlgorithmConfig, Run, measure
from experiments.tacos.networks import NetworkConfig
from jaxcoll.simulation import MODELS
from jaxcoll.synth import Tacos

ATTEMPTS = 16  # of Tacos(), at least; see its ``attempts``


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All-reduces of several algorithms on several networks.

    Attributes:
        title: the figure of the paper.
        size: "ci" or "paper".
        networks: by name.
        algorithms: by name.
        nbytes: bytes of a rank's buffer.
        link_model: "astra" or "tacos" (see ``jaxcoll.simulation``).
        claims: the numbers that the paper prints.
        notes: differences from the paper, and settings that it does not give.
        seed: of everything random.
        results: folder to write to.
    """

    title: str
    size: str
    networks: Mapping[str, NetworkConfig]
    algorithms: Mapping[str, AlgorithmConfig]
    nbytes: tuple[int, ...]
    link_model: str
    claims: tuple[PaperMean, ...]
    notes: tuple[str, ...]
    seed: int
    results: Path

    def __post_init__(self) -> None:
        one_of("link_model", self.link_model, MODELS)
        at_least("seed", self.seed, 0)
        if not self.networks or not self.algorithms:
            raise ConfigError("a comparison needs networks and algorithms")
        if not self.nbytes or min(self.nbytes) < 1 or sorted(set(self.nbytes)) != [*self.nbytes]:
            raise ConfigError(f"nbytes must be rising and at least 1, got {self.nbytes}")
        for claim in self.claims:
            unknown = {claim.of, claim.over} - {*self.algorithms, IDEAL}
            unknown |= {*claim.networks} - {*self.networks}
            if unknown:
                raise ConfigError(f"a claim names {min(unknown)!r}, which is not compared here")

    def measure(self) -> tuple[list[Run], list[str]]:
        """The runs, and a line for each algorithm that is not defined on a network."""
        return measure(self.networks, self.algorithms, self.nbytes, self.link_model, self.seed)

    def footnotes(self) -> list[str]:
        """The notes below every table."""
        return footnotes_of(self.link_model, self.size, self.algorithms)


def footnotes_of(
    link_model: str, size: str, algorithms: Mapping[str, AlgorithmConfig]
) -> list[str]:
    """Remarks on the setting: the link model, which TACOS is meant, whether the run is small."""
    found = [f"Link model {link_model}."]
    if "tacos random" in algorithms:
        found.append(
            f"tacos: rule {Tacos().rule}, the best of {ATTEMPTS} attempts or more; tacos random: "
            f"the paper's rule, one attempt."
        )
    if size == "ci":
        found.append("A small run: for the paper's setting, size=paper.")
    return found
