"""Files and names of networks, of whoever else describes them.

- ``nccl_topology``: hosts as ``NCCL_TOPO_DUMP_FILE`` describes them (``nccl_hosts``), and their
  network; ``nvidia_smi``: a host as ``nvidia-smi topo -m`` prints it; ``amd_smi``: as AMD's tools
  do; ``equal_hosts``: several of them on a network; ``link_types``: the speeds of their links;
- ``lstopo``: hwloc's XML of a machine, in the form of NCCL's;
- ``slurm``: the switches of a cluster; ``ibnetdiscover``: and its cables; ``clusters``: hosts on
  them, and lists of hosts;
- ``graph_files``: GraphML and GEXF; ``infragraph``: InfraGraph; ``astra_sim``: networks of
  ASTRA-sim's analytical backend; ``ns3``: topologies of ns-3 simulators; ``tpu_slices``: TPU slices
  by name; ``gke_labels``: by the labels of their nodes; ``gke_gpus``: hosts of GPUs by theirs.
"""
