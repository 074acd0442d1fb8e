"""Agents that measure over sockets: here all in threads of one process."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from jaxcoll.errors import CollectiveError
from jaxcoll.probing import agents
from jaxcoll.probing.agents import Address, Agent, Wires
from jaxcoll.probing.meter import Flow

RANKS = 3


@contextlib.contextmanager
def job() -> Iterator[tuple[Wires, list[Agent], list[object]]]:
    """The orders of a job's first agent, all agents, and the results or errors of the others."""
    ended: list[object] = []

    def serve(agent: Agent) -> None:
        try:
            ended.append(agent.serve([each.address for each in members]))
        except CollectiveError as error:
            ended.append(error)

    with contextlib.ExitStack() as stack:
        members = [
            stack.enter_context(Agent(rank, "127.0.0.1", secrets.token_hex(16)))
            for rank in range(RANKS)
        ]
        threads = [threading.Thread(target=serve, args=(each,)) for each in members[1:]]
        for thread in threads:
            thread.start()
        with Wires(members[0], [each.address for each in members]) as wires:
            yield wires, members, ended
        for thread in threads:
            thread.join(20)


def test_flows_are_timed():
    with job() as (wires, _, ended):
        assert (wires.hops()[~np.eye(RANKS, dtype=bool)] == 0).all()
        assert (wires.latencies([(0, 1), (2, 1)]) < 0.05).all()
        flows = [Flow(0, 1, 1), Flow(1, 0, 1 << 20), Flow(2, 0, 12345), Flow(0, 0, 99)]
        for _ in range(3):
            assert (wires.times(flows) >= 0).all()
        wires.tell({"do": "end", "found": "a network"})
    assert ended == ["a network"] * (RANKS - 1)


def test_who_does_not_say_the_word_is_refused():
    with job() as (wires, members, _):
        address = members[1].address
        wrong = Address(*address[:3], word="0" * 32)
        sock = agents._connect(wrong, b"b", 2, 1)
        with pytest.raises(ConnectionError):
            agents._read(sock, 1)
        with socket.create_connection(address[:2]) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(64))
            with contextlib.suppress(ConnectionError):
                assert stranger.recv(1) == b""
        wires.times([Flow(1, 2, 100)])
        wires.tell({"do": "end", "found": None})


def test_an_error_of_one_is_that_of_all(monkeypatch):
    monkeypatch.setattr(agents, "TIMEOUT", 0.5)
    monkeypatch.setattr(Agent, "_receive", lambda self, sock: None)
    message = r"the bytes of rank 1 to rank 2 did not arrive within 0\.5 s"
    with pytest.raises(CollectiveError, match=message), job() as (wires, _, _):
        wires.times([Flow(1, 2, 100)])


def test_a_process_that_ends_is_named():
    with job() as (wires, members, _):
        wires.times([Flow(2, 1, 1)])
        members[2].__exit__()
        with pytest.raises(CollectiveError, match="the process of rank 2 has ended"):
            wires.times([Flow(2, 1, 1 << 20)])
        wires.tell({"do": "end", "found": None})


def test_an_address_that_is_not_here():
    with pytest.raises(CollectiveError, match=r"cannot listen at 203\.0\.113\.7.*JAXCOLL_ADDRESS"):
        Agent(0, "203.0.113.7", "0" * 32)
    with Agent(0, "127.0.0.1", "0" * 32) as agent:
        gone = agent.address
    match = "rank 0 cannot connect to rank 1"
    with Agent(0, "127.0.0.1", "1" * 32) as agent, pytest.raises(CollectiveError, match=match):
        Wires(agent, [agent.address, gone])
