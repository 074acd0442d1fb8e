"""The bandwidth of a collective as a function of its resources: equations 1 to 5 of AutoCCL.

A collective runs in two phases, transport and protocol, and is as fast as the slower one
(equation 1). Each phase pays a start-up time per step and moves a batch of bytes in it: NC chunks
of C bytes (equation 4), or the bytes that NC x NT threads hold (equation 5). Congestion lowers the
peak bandwidth of both.

How gaps of the paper are read:

- M cancels between equations 2 and 3: bandwidth does not depend on the message.
- The beta on the right-hand side of equations 2, 4 and 5 is the peak bandwidth (beta with a bar in
  Table 7); else the equations would be circular.
- gamma multiplies the bandwidth, so that it must fall as NC, NT and C grow, though section 4.2 says
  that it rises. Its form is not printed; here 1/gamma = 1 + congestion * NC^a * NT^b * C^c.
- NC x NT is a number of threads, not of bytes. ``THREAD_BYTES`` makes it one.

So 1/beta is a maximum of two posynomials: convex in the logarithms of NC, NT and C.
"""

from __future__ import annotations

import dataclasses
import math
from typing import cast

import numpy as np

from jaxcoll.errors import TuneError
from jaxcoll.numerics import checks
from jaxcoll.tune import Config

# Bytes that a thread moves at once: two 8-byte words. A factor of alpha_1 that decides nothing.
THREAD_BYTES = 16


@dataclasses.dataclass(frozen=True)
class Bandwidth:
    """The model of one subspace (AutoCCL, section 4.2 and Table 7).

    Raises:
        TuneError: constants that are not finite, peaks that are not above 0, negative others.
    """

    # alpha_0 and alpha_1, seconds per step of the transport and of the protocol
    startup: tuple[float, float]
    peak: tuple[float, float]  # peak bandwidth of the transport and of the protocol, B/s
    congestion: float  # factor of 1/gamma - 1 where NC = NT = C = 1
    exponents: tuple[float, float, float]  # of NC, NT and C in 1/gamma - 1

    def __post_init__(self):
        checks.put(
            self,
            startup=_numbers(self.startup, 2, "startup", checks.nonnegative),
            peak=_numbers(self.peak, 2, "peak", checks.positive),
            congestion=float(checks.nonnegative(self.congestion, "congestion", TuneError)),
            exponents=_numbers(self.exponents, 3, "exponents", checks.nonnegative),
        )

    def gamma(self, channels, threads, chunk_bytes):
        """Share of the peak that congestion leaves, in (0, 1]; arrays broadcast."""
        a, b, c = self.exponents
        return 1 / (1 + self.congestion * channels**a * threads**b * chunk_bytes**c)

    def phases(self, channels, threads, chunk_bytes):
        """Bandwidth of the transport and of the protocol in B/s: equations 4 and 5."""
        channels, threads, chunk_bytes = (
            np.asarray(values, float) for values in (channels, threads, chunk_bytes)
        )
        gamma = self.gamma(channels, threads, chunk_bytes)
        batches = channels * chunk_bytes, channels * threads * THREAD_BYTES
        return tuple(
            batch / (startup + batch / (peak * gamma))
            for batch, startup, peak in zip(batches, self.startup, self.peak, strict=True)
        )

    def __call__(self, channels, threads, chunk_bytes):
        """Bandwidth in B/s: equation 1; arrays broadcast."""
        return np.minimum(*self.phases(channels, threads, chunk_bytes))

    def seconds(self, config: Config, nbytes: float) -> float:
        """Time of a message of ``nbytes`` bytes with a configuration of NCCL's resources."""
        values = (cast(float, config[name]) for name in ("channels", "threads", "chunk_bytes"))
        return nbytes / float(self(*values))

    def limits(self, config: Config) -> str:
        """Which phase limits a configuration: ``"transport"`` or ``"protocol"``."""
        values = (cast(float, config[name]) for name in ("channels", "threads", "chunk_bytes"))
        transport, protocol = self.phases(*values)
        return "transport" if transport <= protocol else "protocol"


def _numbers(values, count: int, what: str, check) -> tuple[float, ...]:
    given = checks.members(values, what, TuneError)
    if len(given) != count:
        raise TuneError(f"{what} must be {count} numbers, got {checks.shown(values)}")
    numbers = tuple(float(check(value, what, TuneError)) for value in given)
    if not all(map(math.isfinite, numbers)):
        raise TuneError(f"{what} must be finite, got {checks.shown(values)}")
    return numbers
