"""Topology dumps of NCCL, written here in the form of public ones: DGX H100, DGX A100, others.

``python -m tests.io.networks.hosts`` writes those in ``tests/io/networks/dumps``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

DUMPS = Path(__file__).parent / "dumps"
INTEL = 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"'
AMD = 'arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49"'


def pci(bus: str, kind: str, ids: tuple[str, str], speed: str, width: int = 16) -> str:
    """The opening tag of a PCI device."""
    return (
        f'<pci busid="{bus}" class="{kind}" vendor="{ids[0]}" device="{ids[1]}" '
        f'subsystem_vendor="0x0000" subsystem_device="0x0000" link_speed="{speed} GT/s PCIe" '
        f'link_width="{width}">'
    )


def gpu(bus: str, said: str, speed: str, links: Sequence[str], device: str = "0x2330") -> list[str]:
    """A GPU in its slot."""
    head = pci(bus, "0x030200", ("0x10de", device), speed)
    return [head, f"  <gpu {said}>", *(f"    {link}" for link in links), "  </gpu>", "</pci>"]


def nic(bus: str, number: int, gigabits: int, speed: str) -> list[str]:
    """A network card in its slot."""
    return [
        pci(bus, "0x020700", ("0x15b3", "0x1021"), speed),
        "  <nic>",
        f'    <net name="mlx5_{number}" dev="{number}" latency="0.000000" speed="{gigabits}000" '
        f'port="1" guid="0x{number + 1:x}" maxconn="131072" gdr="1"/>',
        "  </nic>",
        "</pci>",
    ]


def nvlink(target: str, count: int, kind: str = "0x068000") -> str:
    return f'<nvlink target="{target}" count="{count}" tclass="{kind}"/>'


def bridge(bus: str, speed: str, inside: Sequence[str]) -> list[str]:
    head = pci(bus, "0x060400", ("0x1000", "0xc030"), speed)
    return [head, *(f"  {line}" for line in inside), "</pci>"]


def cpu(numa: int, kind: str, inside: Sequence[str], host: str = "0x8aab4a7e1fd9f3c1") -> list[str]:
    hash_ = f'host_hash="{host}" ' if host else ""
    head = f'<cpu {hash_}numaid="{numa}" affinity="ffffffff" {kind}>'
    return [head, *(f"  {line}" for line in inside), "</cpu>"]


def system(lines: Sequence[str], version: int = 1) -> str:
    body = "".join(f"  {line}\n" for line in lines)
    return f'<system version="{version}">\n{body}</system>\n'


def h100() -> str:
    """Eight H100 with four NVSwitches, 5, 5, 4 and 4 links to each in an order of their own."""
    switches = ["0000:05:00.0", "0000:06:00.0", "0000:07:00.0", "0000:08:00.0"]
    sockets = []
    for numa in range(2):
        inside: list[str] = []
        for i in range(4):
            g = 4 * numa + i
            counts = [5, 5, 4, 4]
            order = [switches[(j + g) % 4] for j in range(4)]
            links = [nvlink(bus, counts[(j + g) % 4]) for j, bus in enumerate(order)]
            inside += bridge(f"0000:{0x16 + 0x18 * g:02x}:00.0", "32.0", [
                *nic(f"0000:{0x17 + 0x18 * g:02x}:00.0", g, 400, "32.0"),
                *gpu(f"0000:{0x1b + 0x18 * g:02x}:00.0", f'dev="{g}" sm="90" rank="{g}" gdr="1"',
                     "32.0", links),
            ])  # fmt: skip
        sockets += cpu(numa, INTEL, inside)
    return system(sockets)


def a100() -> str:
    """Eight A100 with six NVSwitches, 2 links to each; two GPUs and two cards to a bridge."""
    switches = [f"0000:{bus:02x}:00.0" for bus in range(0xC4, 0xCA)]
    sockets = []
    for numa in range(4):
        inside: list[str] = []
        for i in range(2):
            g = 2 * numa + i
            links = [nvlink(bus, 2) for bus in switches]
            inside += gpu(
                f"0000:{0x07 + 0x10 * g:02x}:00.0",
                f'dev="{g}" sm="80" rank="{g}" gdr="1"',
                "16.0",
                links,
                "0x20b0",
            )
            inside += nic(f"0000:{0x0B + 0x10 * g:02x}:00.0", g, 200, "16.0")
        sockets += cpu(numa, AMD, bridge(f"0000:{0x01 + 0x20 * numa:02x}:00.0", "16.0", inside), "")
    return system(sockets)


def clique(counts: dict[tuple[int, int], int], gpus: int = 4, sm: int = 70) -> str:
    """GPUs with direct NVLinks."""
    lines: list[str] = []
    for g in range(gpus):
        links = [
            nvlink(f"0000:{b if a == g else a:02x}:00.0", count, "0x030200")
            for (a, b), count in counts.items()
            if g in (a, b)
        ]
        said = f'dev="{g}" sm="{sm}" rank="{g}" gdr="0"'
        lines += gpu(f"0000:{g:02x}:00.0", said, "8.0", links)
    return system(cpu(0, INTEL, lines))


def amd(gpus: int = 4, architecture: str = "942") -> str:
    """MI300X hosts as RCCL writes them: every GPU joined to every other by xgmi."""
    lines: list[str] = []
    for g in range(gpus):
        head = pci(f"0000:{g:02x}:00.0", "0x120000", ("0x1002", "0x74a1"), "32.0")
        links = [
            f'    <xgmi target="0000:{other:02x}:00.0" count="1" tclass="0x120000"/>'
            for other in range(gpus) if other != g
        ]  # fmt: skip
        said = f'dev="{g}" sm="94" gcn="{architecture}" arch="38912" rank="{g}" gdr="1"'
        lines += [head, f"  <gpu {said}>", *links, "  </gpu>", "</pci>"]
    return system(cpu(0, AMD, lines), version=2)


def rack(hosts: int = 2, lost: int | None = None) -> str:
    """Hosts of two GB200 in one NVLink domain: buses and numbers repeat, ranks do not."""
    sockets: list[str] = []
    for host in range(hosts):
        for g in range(2):
            rank = 2 * host + g
            links = [] if rank == lost else [nvlink("fffffff:ff:ff.0", 18)]
            links.append('<c2c bw="44712" count="5"/>')
            lines = gpu(
                f"000{8 + g}:06:00.0",
                f'dev="{g}" sm="100" rank="{rank}" gdr="1"',
                "32.0",
                links,
                "0x2941",
            )
            lines += nic(f"000{8 + g}:03:00.0", g, 400, "32.0")
            arm = 'arch="arm64"'
            sockets += cpu(g, arm, lines, f"0x{host + 1:x}")
    return system(sockets)


if __name__ == "__main__":
    for name, text in (("dgx_h100.xml", h100()), ("dgx_a100.xml", a100())):
        (DUMPS / name).write_text(text)
