"""MSCCL programs in the styles of other tools, made here: rings, all pairs in one pass, pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# type, (srcbuf, srcoff), (dstbuf, dstoff), cnt, (depid, deps) or None, hasdep
Row = tuple[str, tuple[str, int], tuple[str, int], int, tuple[int, int] | None, int]
Blocks = Sequence[tuple[int, int, int, Sequence[Row]]]  # send, recv, chan, rows
IDLE = (("i", -1), ("o", -1), 0)


def text(coll: str, proto: str, chunks: int, ranks: Sequence[Blocks], sizes=None, **said) -> str:
    """The file of a program; ``sizes`` are the chunks of each buffer."""
    channels = 1 + max(block[2] for blocks in ranks for block in blocks)
    said = {"inplace": 1, "outofplace": 0, "minBytes": 0, "maxBytes": 1 << 30, **said}
    more = " ".join(f'{key}="{value}"' for key, value in said.items() if value is not None)
    i, o, s = sizes or (chunks, chunks, 0)
    lines = [
        f'<algo name="a" proto="{proto}" nchannels="{channels}" nchunksperloop="{chunks}" '
        f'ngpus="{len(ranks)}" coll="{coll}" {more}>'
    ]
    for rank, blocks in enumerate(ranks):
        lines.append(f'  <gpu id="{rank}" i_chunks="{i}" o_chunks="{o}" s_chunks="{s}">')
        for number, (send, recv, channel, rows) in enumerate(blocks):
            lines.append(f'    <tb id="{number}" send="{send}" recv="{recv}" chan="{channel}">')
            lines += [_step(at, row) for at, row in enumerate(rows)]
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>\n"])


def _step(at: int, row: Row) -> str:
    kind, (srcbuf, srcoff), (dstbuf, dstoff), count, after, awaited = row
    block, step = after or (-1, -1)
    return (
        f'      <step s="{at}" type="{kind}" srcbuf="{srcbuf}" srcoff="{srcoff}" '
        f'dstbuf="{dstbuf}" dstoff="{dstoff}" cnt="{count}" depid="{block}" deps="{step}" '
        f'hasdep="{awaited}"/>'
    )


def ring_all_reduce(ranks: int, proto: str = "Simple") -> str:
    """Around a ring: receive, add and pass on, then receive and pass on."""
    rows = []
    for rank in range(ranks):
        at = [("i", (rank - away) % ranks) for away in range(ranks)]
        steps: list[Row] = [("s", at[0], at[0], 1, None, 0)]
        steps += [("rrs", at[away], at[away], 1, None, 0) for away in range(1, ranks - 1)]
        steps += [("rrcs", at[-1], at[-1], 1, None, 0)]
        steps += [("rcs", at[away], at[away], 1, None, 0) for away in range(ranks - 1)]
        steps[-1] = ("r", at[ranks - 2], at[ranks - 2], 1, None, 0)
        rows.append([((rank + 1) % ranks, (rank - 1) % ranks, 0, steps)])
    return text("allreduce", proto, ranks, rows)


def all_pairs(ranks: int, *, waits: bool = True, proto: str = "LL") -> str:
    """Everyone sends its input to everyone's scratch, and adds what came to its own.

    A block per pair sends and receives; another one adds, after all sends have read the input and
    all receives have ended.

    Args:
        waits: whether it waits for all of them; it races where it does not.
    """
    rows = []
    for rank in range(ranks):
        others = [other for other in range(ranks) if other != rank]
        blocks: list[tuple[int, int, int, list[Row]]] = []
        for other in others:
            place = ("s", others.index(other) * ranks)
            blocks.append((other, other, 0, [
                ("s", ("i", 0), ("s", 0), ranks, None, 1),
                ("r", ("i", 0), place, ranks, None, 1),
            ]))  # fmt: skip
        needs = [(block, 1) for block in range(len(others))][: None if waits else 1]
        adds: list[Row] = [("nop", *IDLE, after, 0) for after in needs[:-1]]
        for i in range(len(others)):
            after = needs[-1] if not i else None
            adds.append(("re", ("s", i * ranks), ("i", 0), ranks, after, 0))
        rows.append([*blocks, (-1, -1, 0, adds)])
    sizes = (ranks, 0, ranks * (ranks - 1))
    return text("allreduce", proto, ranks, rows, sizes, outofplace=0)


def all_to_all(ranks: int) -> str:
    """Out of place, a chunk from everyone to everyone, a block per peer and direction."""
    rows = []
    for rank in range(ranks):
        others = [other for other in range(ranks) if other != rank]
        blocks: list[tuple[int, int, int, list[Row]]] = [
            (-1, -1, 0, [("cpy", ("i", rank), ("o", rank), 1, None, 0)])
        ]
        for other in others:
            blocks.append((other, -1, 0, [("s", ("i", other), ("o", rank), 1, None, 0)]))
            blocks.append((-1, other, 0, [("r", ("i", rank), ("o", other), 1, None, 0)]))
        rows.append(blocks)
    return text("alltoall", "Simple", ranks, rows, inplace=0, outofplace=1)


def through_the_neighbour(*, answers: bool) -> str:
    """Two ranks, of which rank 0 overwrites what it sent once the other one has answered, or not.

    A block sends chunk 0 and another receives a sum into it: only the answer orders them, if the
    sum includes it.
    """
    first: Iterable[Row] = [("s", ("i", 0), ("i", 0), 1, None, 0)]
    back: Iterable[Row] = [("r", ("i", 0), ("i", 0), 1, None, 0)]
    add: Row = ("rrc", ("i", 0), ("i", 0), 1, None, 1)
    if answers:
        other = [(-1, 0, 0, [add]), (0, -1, 0, [("s", ("i", 0), ("i", 0), 1, (0, 0), 0)])]
        return text("allreduce", "Simple", 1, [[(1, -1, 0, list(first)), (-1, 1, 0, list(back))],
                                              other])  # fmt: skip
    swapped: list[Row] = [("s", ("i", 0), ("i", 0), 1, None, 1)]
    arriving: list[Row] = [("rrc", ("i", 0), ("i", 0), 1, None, 0)]
    blocks = [(1, -1, 0, swapped), (-1, 1, 0, arriving)]
    others = [(0, -1, 0, swapped), (-1, 0, 0, arriving)]
    return text("allreduce", "Simple", 1, [blocks, others])
