"""Transports: how a backend carries out the permutes of a schedule (the T of AutoCCL's Table 2).

A configuration that names none uses the first of its backend. On GPUs:

- "groups": the permutes of a step in one NCCL group, hence one launch;
- "overlapped": a launch per permute, with all permutes of a step in flight together;
- "combined": a launch per permute, one after the other, as XLA orders and combines them;
- "cliques": groups whose permutes use a communicator per set of ranks that exchange messages,
  instead of one communicator of all ranks (openxla/xla#40505; ``cliques``);
- "apart", only for collectives of ``jax.lax``: the parts of an operand are not combined.

On TPUs there are "xla", with XLA's own limit of permutes in flight, and "links", with as many as a
step has. On CPUs there is no choice. All except "groups", "combined" and "xla" need options of the
outermost ``jit``, for the whole program (``options``).
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxcoll.errors import CollectiveError
from jaxcoll.numerics import checks

# Transports by backend; the first is the default.
TRANSPORTS: Mapping[str, tuple[str, ...]] = {
    "cpu": (),
    "gpu": ("groups", "overlapped", "combined", "cliques", "apart"),
    "tpu": ("xla", "links"),
}
_KNOWN = frozenset(name for names in TRANSPORTS.values() for name in names)
_GROUPED = frozenset({"groups", "cliques", "xla", "links"})
_OF_JIT = frozenset({"overlapped", "cliques", "apart", "links"})


def check_transport(name: object) -> str:
    """The name of a transport of any backend.

    Raises:
        CollectiveError: no backend has a transport with this name.
    """
    if isinstance(name, str) and name in _KNOWN:
        return name
    known = ", ".join(sorted(_KNOWN))
    raise CollectiveError(f"unknown transport {checks.shown(name)}; known: {known}")


def is_grouped(transport: str) -> bool:
    """Whether the permutes of a step are one NCCL group on GPUs."""
    return transport in _GROUPED


def alternatives(backend: str, lowering: str, *, of_jit: bool = True) -> tuple[str, ...]:
    """The transports of a schedule other than the default of its backend.

    Args:
        backend: "cpu", "gpu" or "tpu".
        lowering: the name of the lowering; "auto" if ``jax.lax`` runs the collective. A loop's body
            does not overlap on GPUs, and a Pallas kernel has no permutes.
        of_jit: whether transports may need options of the outermost ``jit``, which apply to the
            whole program.
    """
    if lowering == "auto":
        found: tuple[str, ...] = ("apart",) if backend == "gpu" else ()
    elif lowering == "pallas":
        found = ()
    else:
        found = tuple(name for name in TRANSPORTS[backend][1:] if name != "apart")
        if lowering == "scan":
            found = tuple(name for name in found if name != "overlapped")
    return tuple(name for name in found if of_jit or name not in _OF_JIT)
