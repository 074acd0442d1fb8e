"""Measurements over sockets: an agent in each process sends what the first process orders.

An agent listens at an address of its process, for connections of others that send the job's word.
There are two kinds of connections. Over the first, the first process gives *orders* and reads
answers, each a line of JSON; over the second, bytes go from one agent to another. Flows of one
order begin at the same moment, as far as orders arrive in time. The sender times them until a byte
comes back to confirm that all have arrived: the receiver's first byte may wait behind those of
other flows, and its clock is a different one.

The number of hops that a datagram may still take tells how often it was forwarded; only Linux gives
this number to programs.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np

from jaxcoll.errors import CollectiveError
from jaxcoll.numerics import checks
from jaxcoll.probing.meter import Flow

TIMEOUT = 30.0  # seconds in which an order must be done
_ORDERS, _BYTES = b"o", b"b"
_HEADER = struct.Struct("!Q")  # number of bytes that follow
_HELLO = struct.Struct("!32ss")  # the word, and the kind of connection
_DATAGRAM = struct.Struct("!32sI")
_PART = 1 << 18
_HOPS, _DATAGRAMS, _PINGS = 64, 3, 12
# Seconds from sending the first order of flows to their start, so that all orders have arrived.
_LEAD = 0.004
# Python's socket module does not name these on all platforms.
_IP_RECVTTL, _IP_TTL = 12, 2


class Address(NamedTuple):
    """The address at which an agent listens, and the word that it expects."""

    host: str
    port: int
    datagrams: int
    word: str


class Agent:
    """The agent of a process; a context that ends its connections.

    Args:
        rank: rank of the process.
        host: the address at which it listens.
        word: the word that others must send, 32 characters.

    Raises:
        CollectiveError: it cannot listen there.
    """

    def __init__(self, rank: int, host: str, word: str) -> None:
        self.rank = rank
        try:
            family, _, _, _, where = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
            self._listener = socket.socket(family, socket.SOCK_STREAM)
            self._listener.bind(where)
            self._listener.listen(1024)
            self._datagrams = socket.socket(family, socket.SOCK_DGRAM)
            self._datagrams.bind(where)
        except OSError as error:
            raise CollectiveError(
                f"probe: rank {rank} cannot listen at {host}: {error}; JAXCOLL_ADDRESS names "
                "another address"
            ) from None
        self.address = Address(
            host, self._listener.getsockname()[1], self._datagrams.getsockname()[1], word
        )
        self._hops: dict[int, int] = {}
        self._to: dict[int, socket.socket] = {}
        self._open: list[socket.socket] = [self._listener, self._datagrams]
        self._peers: Sequence[Address] = ()
        self._orders: socket.socket | None = None
        self._ordered = threading.Event()
        for target in (self._accept, self._count_hops):
            threading.Thread(target=target, daemon=True).start()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    # ------------------------------------------------------------------ what comes

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # the socket was closed
                return
            threading.Thread(target=self._greet, args=(sock,), daemon=True).start()

    def _greet(self, sock: socket.socket) -> None:
        try:
            sock.settimeout(TIMEOUT)
            word, kind = _HELLO.unpack(_read(sock, _HELLO.size))
            if word.decode(errors="replace") != self.address.word:
                sock.close()
                return
            sock.settimeout(None)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.append(sock)
            if kind == _ORDERS:
                self._orders = sock
                self._ordered.set()
            else:
                self._receive(sock)
        except OSError:  # from a stranger, or at the end
            sock.close()

    def _receive(self, sock: socket.socket) -> None:
        buffer = memoryview(bytearray(_PART))
        while True:
            (left,) = _HEADER.unpack(_read(sock, _HEADER.size))
            while left:
                got = sock.recv_into(buffer, min(left, _PART))
                if not got:
                    return
                left -= got
            sock.sendall(b"\0")

    def _count_hops(self) -> None:
        sock = self._datagrams
        if sys.platform != "linux":
            return
        six = sock.family == socket.AF_INET6
        level = socket.IPPROTO_IPV6 if six else socket.IPPROTO_IP
        option = socket.IPV6_RECVHOPLIMIT if six else _IP_RECVTTL
        kind = socket.IPV6_HOPLIMIT if six else _IP_TTL
        sock.setsockopt(level, option, 1)
        sock.setsockopt(level, socket.IPV6_UNICAST_HOPS if six else socket.IP_TTL, _HOPS)
        while True:
            try:
                said, about, _, _ = sock.recvmsg(_DATAGRAM.size, 256)
            except OSError:  # the socket was closed
                return
            if len(said) < _DATAGRAM.size:
                continue
            word, rank = _DATAGRAM.unpack(said)
            for at, what, value in about:
                if word.decode(errors="replace") == self.address.word and (at, what) == (
                    level,
                    kind,
                ):
                    self._hops[rank] = _HOPS - int.from_bytes(value[:4], sys.byteorder)

    # ------------------------------------------------------------------ what is ordered

    def serve(self, peers: Sequence[Address]) -> Any:
        """Carry out the first process's orders, until it sends its result.

        Raises:
            CollectiveError: the first process failed or has ended.
        """
        self.know(peers)
        if not self._ordered.wait(TIMEOUT) or self._orders is None:
            raise CollectiveError(
                f"probe: the first process gave rank {self.rank} no order within {TIMEOUT:g} s; "
                "all processes call probe together"
            )
        with contextlib.suppress(OSError):
            for line in _lines(self._orders):
                order = json.loads(line)
                if order["do"] == "end" and "error" in order:
                    raise CollectiveError(order["error"])
                if order["do"] == "end":
                    return order["found"]
                try:
                    answer = {"answer": self.obey(order)}
                except (OSError, CollectiveError) as error:
                    answer = {"error": str(error)}
                self._orders.sendall(json.dumps(answer).encode() + b"\n")
        raise CollectiveError("probe: the first process has ended before it found a network")

    def know(self, peers: Sequence[Address]) -> None:
        """Learn the addresses of the others."""
        self._peers = peers

    def obey(self, order: Mapping[str, Any]) -> Any:
        """Carry out an order, and answer."""
        if order["do"] == "flows":
            return self._flows(order)
        if order["do"] == "ping":
            return [self._ping(rank) for rank in order["to"]]
        if order["do"] == "datagrams":
            for _, (rank, peer) in itertools.product(range(_DATAGRAMS), enumerate(self._peers)):
                if rank != self.rank:
                    said = _DATAGRAM.pack(peer.word.encode(), self.rank)
                    self._datagrams.sendto(said, (peer.host, peer.datagrams))
            return None
        return [self._hops.get(rank, -1) for rank in range(len(self._peers))]

    def _connected(self, rank: int) -> socket.socket:
        if rank not in self._to:
            self._to[rank] = _connect(self._peers[rank], _BYTES, self.rank, rank)
            self._open.append(self._to[rank])
        return self._to[rank]

    def _flows(self, order: Mapping[str, Any]) -> list[float]:
        """Seconds of flows to other ranks that begin together, once the others have orders."""
        begin = time.perf_counter() + order["wait"]
        sockets = {rank: self._connected(rank) for rank, _ in order["send"]}
        with futures.ThreadPoolExecutor(len(sockets)) as pool:
            sent = [
                pool.submit(_timed, sockets[rank], nbytes, begin) for rank, nbytes in order["send"]
            ]
            for (rank, _), each in zip(order["send"], sent, strict=True):
                if isinstance(error := each.exception(), OSError):
                    raise CollectiveError(
                        f"probe: the bytes of rank {self.rank} to rank {rank} did not arrive "
                        f"within {TIMEOUT:g} s: {error}"
                    )
            return [each.result() for each in sent]

    def _ping(self, rank: int) -> float:
        """Half of the shortest round-trip time."""
        sock = self._connected(rank)
        return min(_timed(sock, 0, 0.0) for _ in range(_PINGS)) / 2


class Wires:
    """The meter of the first process, which gives orders to all agents. A context.

    Args:
        agent: the agent of the first process.
        addresses: the addresses of all agents, by rank.

    Raises:
        CollectiveError: an agent cannot be reached, or later fails or does not answer in time.
    """

    def __init__(self, agent: Agent, addresses: Sequence[Address]) -> None:
        self.num_ranks = len(addresses)
        self._agent = agent
        agent.know(addresses)
        self._orders = {
            rank: _connect(address, _ORDERS, 0, rank)
            for rank, address in enumerate(addresses)
            if rank
        }
        self._answers = {rank: _lines(sock) for rank, sock in self._orders.items()}

    def __enter__(self) -> Wires:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.tell({"do": "end", "error": f"probe failed in the first process: {error}"})
        for sock in self._orders.values():
            sock.close()

    def tell(self, order: Mapping[str, Any]) -> None:
        """Give an order to all other agents that they do not answer."""
        for sock in self._orders.values():
            with contextlib.suppress(OSError):
                sock.sendall(json.dumps(order).encode() + b"\n")

    def _ask(self, orders: Mapping[int, dict[str, Any]]) -> dict[int, Any]:
        """The answers to orders, by rank."""
        begun = time.perf_counter()
        for rank, order in orders.items():
            if rank:
                order = {**order, "wait": max(0.0, begun + _LEAD - time.perf_counter())}
                with self._named(rank):
                    self._orders[rank].sendall(json.dumps(order).encode() + b"\n")
        found = {}
        if 0 in orders:
            wait = max(0.0, begun + _LEAD - time.perf_counter())
            found[0] = self._agent.obey({**orders[0], "wait": wait})
        for rank in orders:
            if not rank:
                continue
            with self._named(rank):
                line = next(self._answers[rank], None)
            if line is None:
                raise CollectiveError(f"probe: the process of rank {rank} has ended")
            answer = json.loads(line)
            if "error" in answer:
                raise CollectiveError(answer["error"])
            found[rank] = answer["answer"]
        return found

    @contextlib.contextmanager
    def _named(self, rank: int) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise CollectiveError(f"probe: rank {rank} does not answer") from None
        except OSError as error:
            raise CollectiveError(f"probe: the process of rank {rank} has ended: {error}") from None

    def hops(self) -> np.ndarray:
        """As ``Meter.hops``."""
        ranks = range(self.num_ranks)
        self._ask({rank: {"do": "datagrams"} for rank in ranks})
        time.sleep(0.2)
        found = self._ask({rank: {"do": "hops"} for rank in ranks})
        return np.array([found[rank] for rank in ranks]).T

    def latencies(self, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
        """As ``Meter.latencies``."""
        found = {}
        for rank in range(self.num_ranks):
            to = [rank, *(b for a, b in pairs if a == rank)]
            own, *others = self._ask({rank: {"do": "ping", "to": to}})[rank]
            found |= {(rank, b): t - own for b, t in zip(to[1:], others, strict=True)}
        return np.array([found[pair] for pair in pairs])

    def times(self, flows: Sequence[Flow]) -> np.ndarray:
        """As ``Meter.times``."""
        orders: dict[int, dict[str, Any]] = {}
        for flow in flows:
            order = orders.setdefault(flow.src, {"do": "flows", "send": []})
            order["send"].append([flow.dst, flow.nbytes])
        found = self._ask(orders)
        times = {
            (rank, dst): t
            for rank, order in orders.items()
            for (dst, _), t in zip(order["send"], found[rank], strict=True)
        }
        return np.array([times[flow.src, flow.dst] for flow in flows])


def memory_rate() -> float:
    """Bytes per second that this process copies."""
    source, target, best = np.ones(1 << 26, np.uint8), np.zeros(1 << 26, np.uint8), float("inf")
    for _ in range(3):
        begun = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - begun)
    return source.nbytes / best


def _connect(address: Address, kind: bytes, rank: int, to: int) -> socket.socket:
    try:
        sock = socket.create_connection((address.host, address.port), TIMEOUT)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(_HELLO.pack(address.word.encode(), kind))
    except OSError as error:
        raise CollectiveError(
            f"probe: rank {rank} cannot connect to rank {to} at {checks.shown(address.host)}: "
            f"{error}"
        ) from None
    sock.settimeout(TIMEOUT if kind == _BYTES else 2 * TIMEOUT)
    return sock


def _timed(sock: socket.socket, nbytes: int, begin: float) -> float:
    """Send bytes from a given moment on; return the seconds until all are confirmed."""
    zeros = memoryview(bytes(min(nbytes, _PART)))
    time.sleep(max(0.0, begin - time.perf_counter()))
    begun = time.perf_counter()
    sock.sendall(_HEADER.pack(nbytes))
    while nbytes:
        part = min(nbytes, _PART)
        sock.sendall(zeros[:part])
        nbytes -= part
    _read(sock, 1)
    return time.perf_counter() - begun


def _read(sock: socket.socket, nbytes: int) -> bytes:
    said = b""
    while len(said) < nbytes:
        part = sock.recv(nbytes - len(said))
        if not part:
            raise ConnectionError("the connection has ended")
        said += part
    return said


def _lines(sock: socket.socket) -> Iterator[bytes]:
    rest = b""
    while True:
        part = sock.recv(1 << 16)
        if not part:
            return
        *whole, rest = (rest + part).split(b"\n")
        yield from whole
