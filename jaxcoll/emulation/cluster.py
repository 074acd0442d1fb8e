"""The program inside an emulation's namespaces, which lays cables and runs ranks.

It reads the plan as JSON from standard input (``jaxcoll.emulation``). It is the first process of
its namespace of processes: when it ends, the kernel ends all others. With the last of them the
network and mount namespaces end, hence cables and files.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading

_FOLDER = "/run/jaxcoll"
_PORT = 9911
# Bytes that an idle cable passes without delay: a frame, or the bytes of a quarter of a
# millisecond, so that the kernel's timers keep up with fast cables. A bucket of the usual 32 kB
# passes 5 ms of data at once at 50 Mbit/s, and again after every pause: messages of 20 kB took a
# third of their time.
_FRAME, _PER_SECOND = 1600, 4000
# The sender, not losses, limits the bytes in flight. A flow has at most this many bytes in flight,
# or the bytes that the fastest cable carries in a millisecond and during a round trip on the
# slowest route; the queue of a cable has room for those of many flows. So flows share a cable
# evenly, and gloo's notice that it is ready for a message waits only briefly. Without such a limit
# reno lost a fifth of a cable shared by four flows if its queue held 10 ms; if it held more,
# permutes around a circle through two hosts took 1.35 times as long as their bytes.
_LEAST_BUFFER, _BUFFERS_PER_SECOND = 10240, 1000
_FLOWS = 128  # flows whose buffers fit into a queue
# Acknowledgements overtake data that waits for a cable. On a real cable, which is a hundred times
# faster, they wait for nanoseconds. Behind a queue of ten frames they were so late that a sum on a
# 2x4 torus, whose cables carry data both ways, reached 0.87 of their speed, and reaches 0.97 now.
# They are TCP segments without data, of 52 bytes because they carry a time stamp.
_ACKNOWLEDGEMENT = 52
# An acknowledgement that overtakes data acknowledges more than the data behind it. Linux drops data
# whose own acknowledgement is older than the largest window that was ever offered (RFC 5961, 5.2),
# so the window is that of many buffers; the sender limits the bytes in flight.
_WINDOW = 64
# Bytes of TCP that pass a cable at once, three frames: a bucket with a token passes them whole, so
# that a message arrives earlier by its last part. Frame by frame, eight ranks with three cables
# each at 50 Mbit/s kept two cores busy nine tenths of the time.
_LUMP = 4600
CONGESTION_CONTROL = "reno"
_TCP = {
    "ip_forward": "1",
    "tcp_congestion_control": CONGESTION_CONTROL,
    "tcp_slow_start_after_idle": "0",
    "tcp_timestamps": "1",
}


def _do(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        sys.exit(f"jaxcoll emulate: {' '.join(words[:6])} failed: {why}")


def _batch(vertex: int, tool: str, lines: list[str]) -> None:
    if not lines:
        return
    done = subprocess.run(
        [tool, "-n", _name(vertex), "-batch", "-"],
        input="\n".join(lines) + "\n", capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[0]
        sys.exit(f"jaxcoll emulate: {tool} in the namespace of vertex {vertex} failed: {why}")


def _name(vertex: int) -> str:
    return f"v{vertex}"


def _address(vertex: int) -> str:
    return f"10.77.{vertex // 250}.{vertex % 250 + 1}"


def _longest_delay(plan: dict) -> float:
    """Seconds by which cables delay a frame on the slowest route, one way."""
    delay: dict[tuple[int, int], float] = {}
    for a, b, _, _, there, back in plan["cables"]:
        delay[a, b], delay[b, a] = there, back
    longest = 0.0
    for start, following in enumerate(plan["next"]):
        for rank in following:
            at, seconds = start, 0.0
            while at != int(rank):
                hop = plan["next"][at][rank]
                seconds += delay[at, hop]
                at = hop
            longest = max(longest, seconds)
    return longest


def lay_cables(plan: dict) -> None:
    """Create namespaces for all vertices, cables, their speeds, and routes."""
    vertices = range(plan["vertices"])
    links = [[f"addr add {_address(v)}/32 dev lo", "link set lo up"] for v in vertices]
    speeds: list[list[str]] = [[] for _ in links]
    device: dict[tuple[int, int], str] = {}
    for v in vertices:
        _do("ip", "netns", "add", _name(v))
    fastest = max((max(cable[2:4]) for cable in plan["cables"]), default=0) // 8
    both_ways = 2 * _longest_delay(plan)
    buffer = max(_LEAST_BUFFER, fastest // _BUFFERS_PER_SECOND + int(fastest * both_ways))
    tcp = {
        **_TCP,
        "tcp_wmem": f"4096 {buffer} {buffer}",
        "tcp_rmem": "4096 {0} {0}".format((_WINDOW if plan["classes"] else 2) * buffer),
    }
    for k, (a, b, there, back, *delays) in enumerate(plan["cables"]):
        _do(
            "ip", "link", "add", f"c{k}a", "netns", _name(a), "type", "veth",
            "peer", "name", f"c{k}b", "netns", _name(b),
        )  # fmt: skip
        ends = ((a, b, f"c{k}a", there, delays[0]), (b, a, f"c{k}b", back, delays[1]))
        for here, other, end, bits, seconds in ends:
            device[here, other] = end
            lump = [f"link set {end} gso_max_size {_LUMP}"] if plan["classes"] else []
            links[here] += [*lump, f"link set {end} up"]
            held = _in_classes if plan["classes"] else _in_one_queue
            speeds[here] += held(end, bits, _FLOWS * buffer, seconds)
    for v, following in enumerate(plan["next"]):
        # One route per rank; the source is the vertex's own address, not that of a cable.
        for rank, hop in following.items():
            links[v].append(
                f"route add {_address(int(rank))}/32 via {_address(hop)} dev {device[v, hop]} "
                f"onlink src {_address(v)}"
            )
        _batch(v, "ip", links[v])
        _batch(v, "tc", speeds[v])
        _do(
            "ip", "netns", "exec", _name(v), "sh", "-c",
            "".join(f"echo {value} > /proc/sys/net/ipv4/{name}; " for name, value in tcp.items())
            + "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done",
        )  # fmt: skip


def _in_classes(end: str, bits: int, queue: int, seconds: float) -> list[str]:
    """Commands that limit a cable's end to bits per second, with acknowledgements first."""
    burst, slower = max(_FRAME, bits // 8 // _PER_SECOND), bits // 10
    most = f"ceil {bits}bit burst {burst}b cburst {burst}b quantum {_FRAME}"
    delay, frames = f"netem delay {round(seconds * 1e6)}us limit", queue // _FRAME + 1
    waits = delay if seconds else "pfifo limit"
    of = f"class add dev {end} parent"
    return [
        f"qdisc add dev {end} root handle 1: htb default 20 r2q 1000",
        f"{of} 1: classid 1:1 htb rate {bits}bit {most}",
        f"{of} 1:1 classid 1:10 htb rate {slower}bit {most} prio 0",
        f"{of} 1:1 classid 1:20 htb rate {bits - slower}bit {most} prio 1",
        *(f"qdisc add dev {end} parent 1:{k} handle {k}: {waits} {frames}" for k in (10, 20)),
        f"filter add dev {end} parent 1: protocol ip prio 1 u32 match u16 {_ACKNOWLEDGEMENT} 0xffff"
        " at 2 flowid 1:10",
    ]


def _in_one_queue(end: str, bits: int, queue: int, seconds: float) -> list[str]:
    """As ``_in_classes``, for kernels without classes: first come, first served."""
    burst = max(_FRAME, bits // 8 // _PER_SECOND)
    held = f"qdisc add dev {end} root handle 1: tbf rate {bits}bit burst {burst}b limit {queue}b"
    delay = f"qdisc add dev {end} parent 1:1 handle 10: netem delay {round(seconds * 1e6)}us"
    return [held, delay] if seconds else [held]


def _environment(plan: dict, rank: int) -> dict[str, str]:
    """The three arguments of ``jax.distributed.initialize()``, in the variables of Open MPI."""
    ranks, first = plan["ranks"], _address(0)
    return {
        # They look like those of MPI, which has not started the ranks.
        "JAXCOLL_TRANSPORT": "sockets",
        **plan["environment"],
        "JAX_COORDINATOR_ADDRESS": f"{first}:{_PORT}",
        "OMPI_MCA_orte_hnp_uri": f"4096.0;tcp://{first}:{_PORT}",
        "OMPI_COMM_WORLD_SIZE": str(ranks),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "JAX_PLATFORMS": "cpu",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "JAXCOLL_NETWORK": f"{_FOLDER}/network.json",
        "JAXCOLL_RANK": str(rank),
        "JAXCOLL_RANKS": str(ranks),
    }


def run_ranks(plan: dict) -> int:
    """Run the command in every rank's namespace; return 0, or the status of the first failure."""
    host, width = os.uname().nodename, len(str(plan["ranks"] - 1))
    ip = shutil.which("ip") or "ip"  # the path of ranks is the user's, which may not have it
    ended: list[tuple[int, int]] = []
    change, out = threading.Condition(), threading.Lock()

    def follow(rank: int, process: subprocess.Popen) -> None:
        for line in process.stdout or ():
            try:
                with out:
                    sys.stdout.write(f"[{rank:{width}}] {line}")
                    sys.stdout.flush()
            except BrokenPipeError:  # its reader has gone, and ranks must not wait for it
                os._exit(141)
        status = process.wait()
        with change:
            ended.append((rank, status))
            change.notify()

    for rank in range(plan["ranks"]):
        hosts = f"{_FOLDER}/hosts{rank}"
        with open(hosts, "w", encoding="utf-8") as file:
            file.write(f"127.0.0.1 localhost\n{_address(rank)} {host}\n")
        # gloo asks for the address of the host's own name, so each rank has its own file of hosts.
        command = [
            ip, "netns", "exec", _name(rank), "sh", "-c",
            'mount --bind "$0" /etc/hosts && exec "$@"', hosts, *plan["command"],
        ]  # fmt: skip
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", env=_environment(plan, rank),
        )  # fmt: skip
        threading.Thread(target=follow, args=(rank, process), daemon=True).start()
    for seen in range(plan["ranks"]):
        with change:
            while len(ended) <= seen:
                change.wait()
        rank, status = ended[seen]
        if status:
            with out:
                how = f"by signal {-status}" if status < 0 else f"with status {status}"
                print(f"jaxcoll emulate: rank {rank} ended {how}; the others are ended", flush=True)
            return status if status > 0 else 128 - status
    return 0


def main() -> int:
    """Read the plan, lay the cables, run the ranks."""
    plan = json.load(sys.stdin)
    # The host's own folder is hidden, not changed: these mounts are visible only here.
    _do("mount", "-t", "tmpfs", "tmpfs", "/run")
    os.makedirs("/run/netns")
    os.makedirs(_FOLDER)
    with open(f"{_FOLDER}/network.json", "w", encoding="utf-8") as file:
        file.write(plan["network"])
    try:
        lay_cables(plan)
        return run_ranks(plan)
    except KeyboardInterrupt:  # reported by the process that waits for this one
        return 130


if __name__ == "__main__":
    sys.exit(main())
