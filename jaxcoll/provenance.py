"""Provenance: where a schedule comes from, and how files say so."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from jaxcoll import fields


@dataclasses.dataclass(frozen=True, repr=False)
class Provenance:
    """Where a schedule comes from. Not part of its content: equal schedules may differ here.

    Attributes:
        synthesizer: name of the algorithm.
        parameters: its hyperparameters, by name.
        seed: the seed it was given.
        seconds: wall time it took.
        certificate: its claims about the result, by name (a bound it meets, a path it took).
    """

    synthesizer: str = ""
    parameters: Mapping[str, object] = dataclasses.field(default_factory=dict)
    seed: int | None = None
    seconds: float = 0.0
    certificate: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"Provenance({self.synthesizer or 'unnamed'}, {len(self.parameters)} parameters, "
            f"seed {self.seed}, {self.seconds:.3g} s, {len(self.certificate)} claims)"
        )


def encode_provenance(provenance: Provenance) -> dict[str, object]:
    """Provenance in JSON's terms.

    Raises:
        FormatError: a value that JSON cannot say.
    """
    return {
        "synthesizer": str(provenance.synthesizer),
        "parameters": fields.encode(provenance.parameters, "provenance.parameters"),
        "seed": fields.encode(provenance.seed, "provenance.seed"),
        "seconds": fields.encode(provenance.seconds, "provenance.seconds"),
        "certificate": fields.encode(provenance.certificate, "provenance.certificate"),
    }


def decode_provenance(value: object, where: str) -> Provenance:
    """The provenance that ``encode_provenance`` has encoded.

    Raises:
        FormatError: naming the field that is not as it should be.
    """
    given = fields.Fields(value, where)
    arguments = (
        given.take("synthesizer", fields.text, ""),
        given.take("parameters", fields.decode_object, {}),
        given.optional("seed", fields.any_whole),
        given.take("seconds", fields.number, 0.0),
        given.take("certificate", fields.decode_object, {}),
    )
    given.end()
    return Provenance(*arguments)
