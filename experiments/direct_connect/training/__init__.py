"""Training on direct-connect topologies, by a model of its iterations (dissertation, Sec. 3.8.4).

- ``networks``: an iteration of compute, gradients in buckets and all-to-alls that block, and the
  times of its collectives by topology;
- ``moe`` (Fig. 3.9, with the operations under expert parallelism), ``data_parallel`` (Fig. 3.8).
"""
