"""Provenance: where a schedule comes from, and how files say so."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from jaxcoll import fields


@dataclasses.dataclass(frozen=True)
class Provenance:
    """Where a schedule comes from. Not part of its content: equal schedules may differ here.

    Attributes:
        synthesizer: name of the algorithm.
        parameters: its hyperparameters, by name.
        seed: the seed it was given.
        seconds: wall time it took.
        certificate: what it claims of its result, by name (a bound it meets, a path it took).
    """

    synthesizer: str = ""
    parameters: Mapping[str, object] = dataclasses.field(default_factory=dict)
    seed: int | None = None
    seconds: float = 0.0
    certificate: Mapping[str, object] = dataclasses.field(default_factory=dict)


def say_provenance(provenance: Provenance) -> dict[str, object]:
    """Provenance in JSON's terms.

    Raises:
        FormatError: a value that JSON cannot say.
    """
    return {
        "synthesizer": str(provenance.synthesizer),
        "parameters": fields.say(provenance.parameters, "provenance.parameters"),
        "seed": fields.say(provenance.seed, "provenance.seed"),
        "seconds": fields.say(provenance.seconds, "provenance.seconds"),
        "certificate": fields.say(provenance.certificate, "provenance.certificate"),
    }


def read_provenance(value: object, where: str) -> Provenance:
    """What ``say_provenance`` has said.

    Raises:
        FormatError: naming the field that is not as it should be.
    """
    said = fields.Fields(value, where)
    arguments = (
        said.take("synthesizer", fields.text, ""),
        said.take("parameters", fields.hear_object, {}),
        said.optional("seed", fields.whole(-fields.LARGEST, fields.LARGEST)),
        said.take("seconds", fields.number, 0.0),
        said.take("certificate", fields.hear_object, {}),
    )
    said.end()
    return Provenance(*arguments)
