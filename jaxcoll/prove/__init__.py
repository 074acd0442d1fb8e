"""Proofs of files by an independent checker, which uses only the standard library.

``jc.verify`` proves schedules in memory, with the types that synthesizers use. This package reads a
file as its runtime does, replays it, and trusts no other part of the library, so it does not repeat
a mistake of the verifier, of ``jc.io`` or of a type. For a file it shows that every rank ends with
all that the collective asks for, every contribution once; that nothing stops, even if a connection
holds few messages; that uses of a chunk are ordered if one of them writes; and that the runtime's
parser takes the file.

- ``answers``: questions, proofs and refusals;
- ``kinds``: the collectives, one per row;
- ``contents``: the contents of buffers, as a chunk and the set of its contributions;
- ``fields``: JSON that is not trusted;
- ``native``: schedules of ``jaxcoll.schedule/1``; ``schedule_file``: the content of such a file;
- ``orbits``: schedules of ``jaxcoll.orbit-schedule/1``, the sends of one rank's shard;
- ``msccl``: programs in MSCCL XML, for three runtimes; ``msccl_file``: the content of such a file,
  and the runtimes that take it;
- ``plans``: execution plans of MSCCL++ 0.8 and later; ``plan_file``: the content of such a file;
  ``plan_order``: the threads that run independently;
- ``hlo``: compiled HLO text; ``hlo_order``: all its collectives over all groups in one order;
  ``hlo_replay``: a program of one collective with contributions instead of numbers.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from jaxcoll.prove import fields, hlo, hlo_order, hlo_replay, msccl, native, orbits, plans
from jaxcoll.prove.answers import Asked, NotProved, NotRead, Proof, quoted
from jaxcoll.prove.kinds import KINDS

__all__ = ["KINDS", "NotProved", "NotRead", "Proof", "prove_file", "prove_text"]

MAX_BYTES = 2**27
PROGRAM = "program"  # the name of a whole HLO program, in place of a collective


def prove_file(path: str | os.PathLike, kind: str | None = None, ranks: int | None = None, *,
               root: int | Sequence[int] | None = None,
               runtime: str | None = None) -> Proof:  # fmt: skip
    """Prove a file; see ``prove_text``.

    Raises:
        OSError: the file cannot be read.
    """
    name = os.fspath(path)
    if not stat.S_ISREG(os.stat(name).st_mode):
        raise NotRead("not a regular file; give the path of one")
    with open(name, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise NotRead(f"more than the {MAX_BYTES} bytes that are read at most")
    # PowerShell's > writes UTF-16, with a mark in the first bytes.
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        reason = f"{error.reason} at byte {error.start}"
        raise NotRead(f"not {encoding.upper()} text: {reason}") from None
    return prove_text(text, kind, ranks, root=root, runtime=runtime)


def prove_text(text: str, kind: str | None = None, ranks: int | None = None, *,
               root: int | Sequence[int] | None = None,
               runtime: str | None = None) -> Proof:  # fmt: skip
    """Prove a schedule, a program, a plan or compiled HLO; the content tells which it is.

    Args:
        kind: the collective that it must be, one of ``KINDS``; if omitted, that of the file. HLO
            does not name one: without a kind only the order of its collectives is proved.
        ranks: the number of ranks that it must have; if omitted, that of the file.
        root: the root of a rooted collective, for files that do not name it, which are all except
            schedules; 0 if omitted; several roots for reduce_to_some.
        runtime: for MSCCL XML, ``msccl``, ``azure`` or ``rccl``, whose limits must be kept; if
            omitted, those of any one of them.

    Raises:
        NotRead: there is no such file, it is cut short, of another version, or too large; or a root
            or runtime is given for a file or collective that has none.
        NotProved: the file is read but does not do what is asked; the error names rank and chunk if
            one is wrong.
    """
    if kind is not None and kind not in KINDS:
        raise NotRead(f"no collective is called {quoted(kind)}; known: {', '.join(KINDS)}")
    roots = (root or 0,) if root is None or isinstance(root, int) else tuple(root)
    proof = _prove(text, Asked(kind, ranks, roots, runtime))
    # An argument that does not apply would be taken for a part of the proof.
    if runtime is not None and proof.format != "MSCCL XML":
        raise NotRead(f"only MSCCL XML has runtimes, and this is {proof.format}; leave it out")
    kind_row = KINDS.get(proof.collective)
    if root is not None and (kind_row is None or not kind_row.is_rooted):
        raise NotRead(f"{proof.collective} has no root, got {quoted(root)}; leave it out")
    if root is not None and proof.format == "jaxcoll.schedule/1":
        raise NotRead("a schedule names its own root; leave it out")
    return proof


def _prove(text: str, asked: Asked) -> Proof:
    text = text.removeprefix("\ufeff")  # a byte order mark
    start = text[:4096].lstrip()
    if not start:
        raise NotRead("the file is empty; write it again")
    if start.startswith("<"):
        return msccl.prove(text, asked)
    if start.startswith("{"):
        said = fields.parsed(text)
        if str(said.get("format")).startswith(orbits.FORMAT):
            return orbits.prove(said, asked)
        return plans.prove(said, asked) if "gpus" in said else native.prove(said, asked)
    if start.startswith("HloModule"):
        return _prove_hlo(text[text.index("HloModule") :], asked)
    raise NotRead("neither XML nor a JSON object nor HLO; give a schedule, an MSCCL program, a "
                  "plan or the text of a compiled program")  # fmt: skip


def _prove_hlo(text: str, asked: Asked) -> Proof:
    module = hlo.parsed(text)
    if asked.kind is None:
        asked = asked._replace(kind=PROGRAM)
    kind = asked.agreed(None, module.ranks)
    met = hlo_order.check_order(module)
    shown = [f"{len(met)} collectives and permutes: all ranks meet them in one order",
             "groups and pairs have every rank, and none twice"]  # fmt: skip
    if kind == PROGRAM:
        return Proof("HLO", PROGRAM, module.ranks, 0, len(met), tuple(shown))
    chunks, messages = hlo_replay.replay(module, kind, asked.roots)
    shown.insert(0, "complete, each contribution once, with an element for a chunk")
    return Proof("HLO", kind, module.ranks, chunks, messages, tuple(shown))
