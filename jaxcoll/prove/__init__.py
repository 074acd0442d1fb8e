"""Proofs of files by a second opinion: the standard library, and nothing else of this package.

``jc.verify`` proves schedules in memory, with the types that synthesizers use. This package reads a
file as its runtime does, replays it and believes nothing of ours: a mistake of the verifier, of
``jc.io`` or of a type is not repeated. Shown of a file: every rank ends with all that the
collective asks for, every contribution once; nothing stops, however few messages a connection
holds; uses of a chunk are ordered where one writes; the runtime's parser takes the file.

- ``answers``: questions, proofs and refusals;
- ``kinds``: the collectives, a row each;
- ``contents``: what buffers hold, as a chunk and the set of its contributions;
- ``fields``: JSON that is not trusted;
- ``native``: schedules of ``jaxcoll.schedule/1``; ``schedule_file``, what such a file says;
- ``msccl``: programs in MSCCL XML, of three runtimes;
- ``plans``: execution plans of MSCCL++ 0.8 and later; ``plan_file``, what such a file says, and
  ``plan_order``, which threads run apart;
- ``hlo``: compiled HLO text: ``hlo_order``, all its collectives over all groups in one order, and
  ``hlo_replay``, a program of one collective with contributions for numbers.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from jaxcoll.prove import fields, hlo, hlo_order, hlo_replay, msccl, native, plans
from jaxcoll.prove.answers import Asked, NotProved, NotRead, Proof, quoted
from jaxcoll.prove.kinds import KINDS

__all__ = ["KINDS", "NotProved", "NotRead", "Proof", "prove_file", "prove_text"]

MAX_BYTES = 2**27
PROGRAM = "program"  # what a whole HLO program is called in place of a collective


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
    # PowerShell's > writes UTF-16, and says so in the first bytes.
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
    """Prove a schedule, a program, a plan or compiled HLO, told apart by its content.

    Args:
        kind: the collective that it must be, one of ``KINDS``; the file's own where omitted. HLO
            says none: without a kind only the order of its collectives is proved.
        ranks: how many ranks it must have; the file's own where omitted.
        root: of a rooted collective in a file that does not name it, any but a schedule; 0 where
            omitted; of reduce_to_some several.
        runtime: of MSCCL XML: ``msccl``, ``azure`` or ``rccl``, whose limits must be kept; one of
            them, whichever, where omitted.

    Raises:
        NotRead: no such file, one that is cut short, of another version, or too large; a root or
            runtime of a file or collective that has none.
        NotProved: it is read and does not do what is asked, naming rank and chunk where one is
            wrong.
    """
    if kind is not None and kind not in KINDS:
        raise NotRead(f"no collective is called {quoted(kind)}; known: {', '.join(KINDS)}")
    roots = (root or 0,) if root is None or isinstance(root, int) else tuple(root)
    proof = _prove(text, Asked(kind, ranks, roots, runtime))
    # What does not apply would be taken for a part of the proof.
    if runtime is not None and proof.format != "MSCCL XML":
        raise NotRead(f"a runtime is of MSCCL XML, and this is {proof.format}; leave it out")
    kind_row = KINDS.get(proof.collective)
    if root is not None and (kind_row is None or not kind_row.is_rooted):
        raise NotRead(f"{proof.collective} has no root, got {quoted(root)}; leave it out")
    if root is not None and proof.format == "jaxcoll.schedule/1":
        raise NotRead("a schedule names its own root; leave it out")
    return proof


def _prove(text: str, asked: Asked) -> Proof:
    text = text.removeprefix("\ufeff")  # a mark of some editors
    start = text[:4096].lstrip()
    if not start:
        raise NotRead("the file is empty; write it again")
    if start.startswith("<"):
        return msccl.prove(text, asked)
    if start.startswith("{"):
        said = fields.parsed(text)
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
