"""Several processes, connected by gloo on the loopback."""

from __future__ import annotations

import pytest

from jaxcoll.execute.choice.measured_costs import loads
from tests.elsewhere import printed_by_processes


def printed(processes: int, devices: int, *tasks: str) -> list[dict[str, str]]:
    """What each process printed in each task."""
    module = "tests.execute.meshes.worker"
    texts = printed_by_processes(module, processes, [devices, *tasks])
    for text in texts:
        assert all(f"# {task}\n" in text for task in tasks), text
    return [dict(part.split("\n", 1) for part in text.split("# ")[1:]) for text in texts]


@pytest.fixture(scope="module")
def three() -> list[dict[str, str]]:
    """Three processes of two devices: starting them takes longer than most tasks."""
    return printed(3, 2, "differ", "some", "alone")


def test_every_collective():
    for said in printed(2, 2, "same"):
        assert said["same"].rstrip().endswith("OK"), said


@pytest.mark.slow
def test_a_fault_of_one_rank_ends_all_processes():
    for said in printed(2, 2, "ragged"):
        assert "on rank 3 send_sizes[1] is -1" in said["ragged"], said
        assert said["ragged"].rstrip().endswith("OK"), said


@pytest.mark.slow
def test_every_collective_on_eight_devices():
    for said in printed(2, 4, "both"):
        assert said["both"].rstrip().endswith("OK"), said


@pytest.mark.slow
def test_different_schedules_are_an_error_everywhere_and_what_follows_runs(three):
    for said in three:
        assert said["differ"].count("processes are about to run different schedules") == 2, said
        assert said["differ"].rstrip().endswith("OK"), said


@pytest.mark.slow
def test_different_schedules_on_some_of_the_devices(three):
    *members, other = three
    for said in members:
        assert said["some"].count("processes are about to run different schedules") == 1, said
        assert said["some"].rstrip().endswith("OK"), said
    assert other["some"].rstrip().endswith("OK"), other


@pytest.mark.slow
def test_tracing_and_compiling_wait_for_nobody(three):
    # A process that waited would do so for longer than the test may take.
    for said in three:
        assert said["alone"].rstrip().endswith("OK"), said


@pytest.mark.slow
def test_costs_are_measured_together_and_are_those_of_one_host():
    found = []
    for said in printed(2, 2, "measure"):
        *lines, end = said["measure"].rstrip().splitlines()
        # Gloo and JAX print lines of their own in between.
        marked = [each.removeprefix("said: ") for each in lines if each.startswith("said: ")]
        some, turned, costs, mixed, named = marked
        assert "devices of 1 of 2 processes" in some
        assert "process 1 measures a mesh of devices [" in turned
        assert "ranks that share one host's memory" in mixed
        assert "state costs measured on it" in named
        assert end == "OK"
        found.append(costs)
    assert found[0] == found[1]
    (costs,) = loads(found[0]).values()
    assert costs.shared
    assert costs.order.name == "rounds"
    assert "2 processes on one host" in costs.source
