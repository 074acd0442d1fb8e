"""Files and names of networks, as other tools describe them.

- ``nccl_topology``: the network of hosts in a file of ``NCCL_TOPO_DUMP_FILE`` (``nccl_hosts``);
  ``nvidia_smi``: a host as ``nvidia-smi topo -m`` prints it; ``amd_smi``: a host as AMD's tools
  print it; ``equal_hosts``: several equal hosts on a network; ``link_types``: the speeds of their
  links;
- ``lstopo``: hwloc's XML of a machine, converted to the form of NCCL's;
- ``slurm``: the switches of a cluster; ``ibnetdiscover``: switches and their cables; ``clusters``:
  hosts on switches, and lists of hosts;
- ``graph_files``: GraphML and GEXF; ``infragraph``: InfraGraph; ``astra_sim``: networks of
  ASTRA-sim's analytical backend; ``ns3``: topologies of ns-3 simulators; ``tpu_slices``: TPU slices
  by name; ``gke_labels``: TPU slices by the labels of their nodes; ``gke_gpus``: hosts of GPUs by
  the labels of their nodes.
"""
