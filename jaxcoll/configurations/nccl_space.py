"""NCCL's configurations: Table 2 of AutoCCL (NSDI 2025), whole.

Values are written as NCCL's tuner configuration files write them, in lower case.
"""

from __future__ import annotations

from jaxcoll.configurations.config import Config, Parameter

ALGORITHM = Parameter("algorithm", ("tree", "ring"), "implementation")
PROTOCOL = Parameter("protocol", ("ll", "ll128", "simple"), "implementation")
TRANSPORT = Parameter("transport", ("p2p", "shm"), "implementation")
CHANNELS = Parameter("channels", tuple(range(1, 129)), "resource")
THREADS = Parameter("threads", tuple(range(32, 641, 32)), "resource")
CHUNK_BYTES = Parameter("chunk_bytes", tuple(range(256, 256 * 8192 + 1, 256)), "resource")

# In the paper's order <A, P, T, NC, NT, C>.
TABLE_2 = (ALGORITHM, PROTOCOL, TRANSPORT, CHANNELS, THREADS, CHUNK_BYTES)


def nccl_config(
    algorithm: str, protocol: str, transport: str, channels: int, threads: int, chunk_bytes: int
) -> Config:
    """The configuration <A, P, T, NC, NT, C>."""
    values = (algorithm, protocol, transport, channels, threads, chunk_bytes)
    return Config(dict(zip((p.name for p in TABLE_2), values, strict=True)))


# What NCCL 2.18.3 chooses for an all-gather of 80 MB on eight GPUs with NVLink (Table 4, C_N0) and
# with PCIe (Table 3, C_P0).
NVLINK_DEFAULT = nccl_config("ring", "simple", "p2p", 8, 512, 2 * 2**20)
PCIE_DEFAULT = nccl_config("ring", "simple", "shm", 2, 256, 2 * 2**20)
