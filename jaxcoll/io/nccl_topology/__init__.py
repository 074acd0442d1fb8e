"""NCCL's topology XML, as ``NCCL_TOPO_DUMP_FILE`` writes it: hosts, and their network.

- ``hosts``: GPUs, network cards and all between them, read and written;
- ``network``: the ``Topology`` of a file's hosts, with the speeds of ``jaxcoll.io.link_types``.
"""

from jaxcoll.io.nccl_topology.hosts import Gpu, Nic, System, dumps, load, loads, save
from jaxcoll.io.nccl_topology.network import topology

__all__ = ["Gpu", "Nic", "System", "dumps", "load", "loads", "save", "topology"]
