"""Framing: the bytes on a link beyond a message's own, the heads of its packets."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

from jaxcoll.errors import ScheduleError
from jaxcoll.numerics import checks


@dataclasses.dataclass(frozen=True)
class Framing:
    """Heads of packets: one per packet, or one per message that is not divided into packets.

    The flow control of MultiTree (ISCA 2021, Sec. II-D and IV-B, Fig. 2 and 7): packets carry 64 to
    256 bytes behind a head flit of 16, which costs 25 to 6 % of the bandwidth; a large gradient
    sent as one message has one head.

    Attributes:
        payload: bytes of a packet without its head; None for whole messages.
        head: bytes of a head.

    Raises:
        ScheduleError: a payload below 1, or a head below 0.
    """

    payload: int | None = 256
    head: int = 16

    def __post_init__(self) -> None:
        payload = checks.optional(self.payload, checks.integer, "payload", ScheduleError, least=1)
        head = checks.integer(self.head, "head", ScheduleError, least=0)
        checks.put(self, payload=payload, head=head)

    def on_link(self, nbytes: Fraction) -> Fraction:
        """Bytes that a message of ``nbytes`` is on a link, heads included."""
        heads = 1 if self.payload is None else math.ceil(nbytes / self.payload)
        return nbytes + heads * self.head


PACKETS = Framing()
WHOLE = Framing(payload=None)
