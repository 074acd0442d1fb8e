"""Independent work over executors: the same results for any number of workers, dying ones too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from jaxcoll import executors
from jaxcoll.errors import TopologyError


@pytest.fixture(scope="module")
def pool():
    with executors.processes(2) as made:
        yield made


def square(x: int) -> int:
    return x * x


def refuse(x: int) -> int:
    raise TopologyError(f"no network of {x} ranks")


def square_or_die_once(job: tuple[int, str]) -> int:
    """Kills its own process at the first call for a number above 3."""
    x, folder = job
    if x > 3:
        try:
            Path(folder, str(x)).touch(exist_ok=False)
        except FileExistsError:
            return x * x
        os.kill(os.getpid(), signal.SIGKILL)
    return x * x


def die(x: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return x


@pytest.mark.parametrize("workers", [None, 1, 4])
def test_results_come_in_the_order_of_the_jobs(workers):
    if workers is None:
        assert list(executors.ordered(square, range(9))) == [x * x for x in range(9)]
        return
    with ThreadPoolExecutor(workers) as threads:
        assert list(executors.ordered(square, range(9), threads)) == [x * x for x in range(9)]


def test_processes_give_the_same_results(pool):
    assert list(executors.ordered(square, range(20), pool)) == [x * x for x in range(20)]
    assert list(executors.ordered(square, [], pool)) == []


def test_an_error_of_a_job_is_raised_as_it_is(pool):
    with pytest.raises(TopologyError, match="no network of 3 ranks"):
        list(executors.ordered(refuse, [3], pool))


def test_jobs_of_killed_workers_are_repeated(tmp_path):
    jobs = [(x, str(tmp_path)) for x in range(6)]
    with executors.processes(2) as pool:
        assert list(executors.ordered(square_or_die_once, jobs, pool)) == [x * x for x in range(6)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4", "5"]


class Broken(Executor):
    """An executor of another library, whose workers are dead."""

    def submit(self, fn, /, *args, **kwargs):
        future: Future = Future()
        future.set_exception(BrokenExecutor("gone"))
        return future


def test_a_job_that_always_kills_its_worker_is_given_up(monkeypatch):
    monkeypatch.setattr(executors, "MOST_REPEATS", 1)
    with (
        executors.processes(1) as pool,
        pytest.raises(BrokenExecutor, match=r"2 times .* first is 7"),
    ):
        list(executors.ordered(die, [7], pool))
    with pytest.raises(BrokenExecutor, match="2 jobs were not done"):
        list(executors.ordered(square, [1, 2], Broken()))


def test_what_is_no_executor_is_refused():
    class Client:
        def get_executor(self):
            raise NotImplementedError

    with pytest.raises(TopologyError, match=r"client\.get_executor\(\)"):
        executors.checked(Client(), TopologyError)
    with pytest.raises(TopologyError, match="or None for this process, got 4"):
        executors.checked(4, TopologyError)


STOPPED = """
import sys, time
from jaxcoll import executors

if __name__ == "__main__":
    with executors.processes(2) as pool:
        for pid in executors.ordered(eval, ["__import__('os').getpid()"] * 20, pool):
            print(pid, flush=True)
        print("ready", flush=True)
        list(executors.ordered(time.sleep, [60] * 4, pool))
"""


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL], ids=lambda s: s.name)
def test_no_worker_is_left_behind(stop, tmp_path):
    script = tmp_path / "stopped.py"
    script.write_text(STOPPED)
    command = [sys.executable, script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        assert running.stdout is not None
        lines = iter(running.stdout.readline, b"ready\n")
        workers = {int(line) for line in lines if line.strip().isdigit()}
        assert workers
        running.send_signal(stop)
        assert running.wait(timeout=60) != 0
    for pid in workers:
        for _ in range(600):
            if not alive(pid):
                break
            time.sleep(0.1)
        assert not alive(pid)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def cluster(workers: int):
    distributed = pytest.importorskip("distributed")
    return distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None
    )


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_dask_workers_find_the_same(workers):
    from jaxcoll.finder import find  # not above: workers of other tests import this module

    here = find(12, 4)
    with cluster(workers) as local, local.get_client() as client:
        assert find(12, 4, executor=client.get_executor()) == here


@pytest.mark.slow
def test_dask_repeats_the_jobs_of_a_killed_worker(tmp_path):
    jobs = [(n, str(tmp_path)) for n in range(6)]
    with cluster(2) as local, local.get_client() as client:
        found = executors.ordered(square_or_die_once, jobs, client.get_executor())
        assert list(found) == [n * n for n in range(6)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4", "5"]
