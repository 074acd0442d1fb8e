"""The player in this process: its library, its address, and the addresses of the others.

A process listens once, at the address by which it reaches the coordinator of ``jax.distributed`` or
at ``JAXCOLL_ADDRESS``. It publishes address, port and a word that every peer must send when it
connects, through the service that connects the processes. Links are opened when a message first
needs them, and kept. Where MPI has started the processes, they join by it before they publish, and
links between processes that have joined are its (``transport.py``).

Before JAX compiles a program, each call is given the devices that it runs on, its number, and the
call before it (``player.cc`` says why), since none of these is known while it is traced.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib.util
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxcoll import jax_internals
from jaxcoll.errors import CollectiveError
from jaxcoll.execute.links import build, transport
from jaxcoll.execute.links.transport import Transport

log = logging.getLogger(__name__)

TARGET = "jaxcoll_links"
GPU_TARGET = "jaxcoll_links_gpu"
_KEY = "jaxcoll/links/{}"
_SECONDS = 60.0
# A process is named if it keeps the others waiting for more than this share of a window of seconds.
_WINDOW, _LATE = 10.0, 0.1
COMPILE = "python -m jaxcoll.execute.links compiles it, with a C++ compiler"


def compiled() -> Path | str:
    """The compiled library that this jaxlib can call, or the reason why there is none."""
    if os.environ.get("JAXCOLL_LINKS") == "0":
        return "JAXCOLL_LINKS=0 is in the environment"
    try:
        newest = build.version_of(build.headers())
    except RuntimeError as error:
        return str(error)
    usable = {}
    for path in Path(__file__).parent.glob(build.PATTERN):
        major, _, minor = path.stem.rpartition("-")[2].partition(".")
        if (int(major), int(minor)) <= newest:
            usable[int(major), int(minor)] = path
    return usable[max(usable)] if usable else f"its player is not compiled; {COMPILE}"


@functools.cache
def library() -> ctypes.CDLL | str:
    """The library, with its call registered with JAX, or the reason why there is none."""
    path = compiled()
    if isinstance(path, str):
        return path
    try:
        found = ctypes.CDLL(str(path))
    except OSError as error:
        return f"its player cannot be loaded: {error}; {COMPILE}"
    if found.jaxcoll_links_version() != build.source_number():
        return f"its player is of another version of jaxcoll; {COMPILE}"
    found.jaxcoll_links_know.argtypes = (ctypes.c_int64, *(ctypes.c_char_p,) * 3, ctypes.c_int)
    found.jaxcoll_links_join.argtypes = (
        ctypes.c_char_p, ctypes.c_double, ctypes.POINTER(ctypes.c_int64), ctypes.c_char_p,
    )  # fmt: skip
    found.jaxcoll_links_recorded.argtypes = (ctypes.POINTER(ctypes.c_int64), ctypes.c_int64)
    found.jaxcoll_links_recorded.restype = ctypes.c_int64
    found.jaxcoll_links_late.argtypes = (ctypes.POINTER(ctypes.c_double),)
    call = jax.ffi.pycapsule(found.jaxcoll_links_play)
    jax.ffi.register_ffi_target(TARGET, call, platform="cpu")
    jax_internals.before_compiling(prepare)
    if plays_on_gpus(found):
        found.jaxcoll_gpu_libraries(*(_library_of(name) for name in ("nvrtc", "nccl")))
        stages = ("prepare", "initialize", "play")
        symbols = (getattr(found, f"jaxcoll_gpu_{stage}") for stage in stages)
        handlers = map(jax.ffi.pycapsule, symbols)
        names = ("prepare", "initialize", "execute")
        jax.ffi.register_ffi_target(
            GPU_TARGET, dict(zip(names, handlers, strict=True)), platform="CUDA"
        )
    return found


def plays_on_gpus(library: ctypes.CDLL) -> bool:
    """Whether a library holds the player of GPUs, which calls of jaxlib 0.11 and newer can have."""
    return hasattr(library, "jaxcoll_gpu_play")


def _library_of(name: str) -> bytes:
    """NVIDIA's library in its Python package, for any version of CUDA; b"" if there is none."""
    found = importlib.util.find_spec("nvidia")
    folders = (found.submodule_search_locations if found else None) or ()
    paths = (path for folder in folders for path in Path(folder).glob(f"*/lib/lib{name}.so.*"))
    return next((str(path).encode() for path in sorted(paths)), b"")


def timeout() -> float:
    """Seconds without progress after which a call gives up: ``JAXCOLL_TIMEOUT``, or 60.

    Raises:
        CollectiveError: the variable is not a number above 0.
    """
    said = os.environ.get("JAXCOLL_TIMEOUT", "")
    try:
        seconds = float(said or _SECONDS)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise CollectiveError(
            f"JAXCOLL_TIMEOUT must be a number of seconds above 0, got {said[:60]!r}"
        )
    return seconds


def prepare(module: Any, devices: list) -> None:
    """Write the devices, numbers and order of a program's calls into them."""
    blocks = jax_internals.calls_in(module, TARGET)
    if not blocks:
        return
    here = _address()
    for device in devices:
        if device.process_index == jax.process_index():
            _know(device.id, here)
    number, ids = 0, [int(device.id) for device in devices]
    for lane, calls in enumerate(blocks):
        for before, call in zip([None, *calls], calls, strict=False):
            jax_internals.set_call(call, {"number": number, "lane": lane, "devices": ids})
            if before is not None:
                call.operands[3] = before.results[1]
            number += 1


def meet(devices: Iterable[Any]) -> None:
    """Learn the addresses of the processes that hold devices; all of them must call this.

    Raises:
        CollectiveError: a process does not publish its address in time, or is in no job of MPI with
            this one although MPI was chosen by hand.
    """
    me, seconds = jax.process_index(), timeout()
    _address()
    for device in devices:
        if device.process_index != me:
            found = _address_of(device.process_index, seconds)
            if _joined().rank >= 0 and found.world != _joined().world:
                _without_mpi(device.process_index)
            _know(device.id, found)


def _without_mpi(process: int) -> None:
    why = f"process {process} is not in this one's job of MPI"
    if os.environ.get(transport.CHOICE):
        raise CollectiveError(f"links: {why}; {transport.CHOICE}=sockets does without MPI")
    log.warning("links to process %d go over sockets: %s", process, why)


class Address(NamedTuple):
    """Where the links of a process are.

    Attributes:
        host, port, word: the place where it listens, and the word that it wants to hear.
        rank: in MPI; -1 if that does not carry its links.
        world: a name of the processes that MPI has started together.
    """

    host: str
    port: str
    word: str
    rank: int = -1
    world: int = 0


@functools.cache
def _address() -> Address:
    """This process, once it listens and has published where."""
    engine = library()
    if isinstance(engine, str):
        raise CollectiveError(f"the lowering 'links' cannot run here: {engine}")
    at, word = host(), secrets.token_hex(16)
    error = ctypes.create_string_buffer(256)
    port = engine.jaxcoll_links_listen(at.encode(), word.encode(), error)
    if not port:
        raise CollectiveError(
            f"links: {error.value.decode(errors='replace')}; set JAXCOLL_ADDRESS to another "
            "address of this machine"
        )
    found = Address(at, str(port), word, *_joined()[1:])
    if jax.process_count() > 1:
        me = jax.process_index()
        jax_internals.publish(_KEY.format(me), json.dumps(found))
        threading.Thread(target=_tell_if_late, args=(me,), daemon=True).start()
    return found


class _Joined(NamedTuple):
    """What carries this process's links, its rank in MPI, and the name of MPI's world."""

    transport: Transport
    rank: int = -1
    world: int = 0


def described() -> Transport:
    """The transport of links, and why: as it is chosen, until a program needs it and MPI starts."""
    return _joined().transport if _joined.cache_info().currsize else transport.chosen()


@functools.cache
def _joined() -> _Joined:
    engine, choice = library(), transport.chosen()
    is_by_hand = bool(os.environ.get(transport.CHOICE))
    if isinstance(engine, str) or not choice.library:
        return _Joined(choice)
    if jax.process_count() == 1 and not is_by_hand:
        return _Joined(Transport(transport.SOCKETS, "there is one process"))
    found, error = (ctypes.c_int64 * 3)(), ctypes.create_string_buffer(256)
    has_joined = engine.jaxcoll_links_join(choice.library.encode(), timeout(), found, error)
    rank, size, world = found
    why = "" if has_joined else error.value.decode(errors="replace")
    if has_joined:
        atexit.register(engine.jaxcoll_links_leave)
        if size < jax.process_count():
            why = (
                f"MPI ({choice.library}) sees {size} of {jax.process_count()} processes: did its "
                "own mpiexec start them?"
            )
    if not why:
        return _Joined(choice, rank, world)
    if is_by_hand:
        raise CollectiveError(f"links: {why}; {transport.CHOICE}=sockets does without MPI")
    log.warning("links go over sockets: %s", why)
    return _Joined(Transport(transport.SOCKETS, why))


def lateness() -> tuple[float, float, int]:
    """Seconds for which others have waited for calls to begin in this process.

    A message that arrives before its call has begun waits for it, while no other call is running.
    The first run of a program, which compiles it, does not count.

    Returns:
        The seconds of all calls, those of the longest, and the number of calls.
    """
    engine = library()
    found = (ctypes.c_double * 3)()
    if not isinstance(engine, str):
        engine.jaxcoll_links_late(found)
    return found[0], found[1], int(found[2])


def _tell_if_late(process: int) -> None:
    # This never asks JAX: the thread still runs while the interpreter exits, when JAX has released
    # its backend and would create another one.
    seconds = calls = 0
    while True:
        time.sleep(_WINDOW)
        now, _, count = lateness()
        if said := late_text(now - seconds, count - calls, process):
            log.warning(said)
        seconds, calls = now, count


def late_text(seconds: float, calls: int, process: int) -> str:
    """The line of the log about late calls in a window; "" if they are few."""
    if seconds < _LATE * _WINDOW:
        return ""
    return (
        f"process {process} kept the others waiting for {seconds:.1f} of {_WINDOW:g} s, in {calls} "
        f"call{'s' * (calls != 1)} over links"
    )


@functools.cache
def _address_of(process: int, seconds: float) -> Address:
    said = jax_internals.fetch(_KEY.format(process), seconds)
    if said is None:
        raise CollectiveError(
            f"process {process} did not say within {seconds:g} s at which address its links "
            "listen; does it run the same program, and is jaxcoll's player compiled there?"
        )
    return Address(*json.loads(said))


def _know(device: int, address: Address) -> None:
    engine, here = library(), _address()
    if not isinstance(engine, str):
        rank = address.rank if address.world == here.world else -1
        said = (part.encode() for part in (address.host, address.port, address.word))
        engine.jaxcoll_links_know(device, *said, rank)


def host() -> str:
    """The address at which this process listens."""
    if given := os.environ.get("JAXCOLL_ADDRESS"):
        return given
    coordinator = jax_internals.coordinator()
    if coordinator is None:
        return "127.0.0.1"
    host, _, port = coordinator.rpartition(":")
    try:
        family, kind, *_, address = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # a datagram socket, so nothing is sent
            return probe.getsockname()[0]
    except (OSError, ValueError) as error:
        raise CollectiveError(
            f"links: no address of this process reaches the coordinator {coordinator}: "
            f"{error}; set JAXCOLL_ADDRESS to one that does"
        ) from None
