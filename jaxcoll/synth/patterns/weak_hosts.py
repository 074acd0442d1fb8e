"""A host with a slow or dead network card in an all_reduce: it sums more, and sends to fewer.

In a reduce_scatter such a host sends out nearly all of the buffer, and in an all_gather nearly all
of it comes in, so that each phase takes as long as its slower cards need: with 7 cards of 8, 8/7 of
the time. But in an all_reduce any rank may sum any chunk. Chunks that the weak host sums do not
leave it in the first phase, and do not enter it in the second. So in the second phase, the first
one backwards,

- it *adopts* chunks of the other hosts: it sums a chunk, and gives the sum to the rank that would
  have summed it, which sends it along its rail as before;
- its own shards go to two of three hosts only, or to three of four, and so on, and are *relayed*
  from there to the next host, since the weak host could not send adopted chunks as well.

On 32 hosts of 8 ranks with one dead card, the weak host adopts an eighth of all chunks, and the
slowest link is as busy as without the fault, within a percent.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxcoll.synth.building.circles import SLOW

# Pieces of a shard. More than 8 make no finer shares of the chunks of a host of 8 ranks.
_MOST_CHUNKS = 8
# Part of the adopted chunks where shards are a single chunk: a rank whose chunk is adopted has
# nothing to send until it gets the sum.
_SINGLE = 0.5


@dataclasses.dataclass(frozen=True)
class WeakHost:
    """The only host with slow rails, and what other ranks do for it.

    Attributes:
        host: its number.
        fast: the indices of its ranks with fast rails, ascending.
        share: part of the chunks of a fast rail that it adopts.
        period: number of hosts in a row, of which one gets a chunk from the host before it and the
            others get it from the weak host.
    """

    host: int
    fast: tuple[int, ...]
    share: float
    period: int

    def adopts(self, hosts: int, inner: int, chunks: int) -> np.ndarray:
        """Whether it adopts the last of a rank's chunks, bool of shape (hosts * inner,)."""
        index = np.asarray(self.fast)
        ahead = np.arange(1, hosts)[:, None]
        share = min(1.0, self.share * chunks) * (_SINGLE if chunks == 1 else 1.0)
        # At even distances, on each rail at other hosts.
        taken = np.floor((ahead + index) * share) > np.floor((ahead + index - 1) * share)
        found = np.zeros((hosts, inner), bool)
        found[(self.host + ahead) % hosts, index] = taken
        return found.ravel()

    def chunks(self, sends: float, most: float) -> int:
        """Chunks per shard of which adopting the last is about the right part.

        Args:
            sends: sends with one chunk per shard.
            most: the most sends.
        """
        count = 1
        while count < _MOST_CHUNKS and 2 * count * sends <= most:
            count *= 2
        return count


def weak_host(slowness: np.ndarray, inner: int) -> WeakHost | None:
    """The weak host of a network; None if none is, if several are, or if it is too weak.

    Args:
        slowness: as by ``rail_slowness``.
        inner: ranks per host.
    """
    slow = slowness.max(axis=0).reshape(-1, inner)
    weak = np.flatnonzero((slow > SLOW).any(axis=1))
    if len(weak) != 1 or len(slow) < 3:
        return None
    host, hosts = int(weak[0]), len(slow)
    speed = float(np.minimum(1.0, 1 / slow[host]).sum())
    period = int(inner / (2 * (inner - speed)))
    if period < 2:  # two hosts in a row would wait for the shard from the host before
        return None
    # Part of the buffer that enters it, if its rails and those of the other hosts, of which each
    # takes what it does not sum itself, are to be busy for equally long.
    enters = 1 / (inner / speed + 1 / (hosts - 1))
    fast = np.flatnonzero(slow[host] <= SLOW)
    share = (1 - enters - 1 / hosts) * hosts / (hosts - 1) * inner / len(fast)
    return WeakHost(host, tuple(fast.tolist()), share, period) if share > 0 else None
