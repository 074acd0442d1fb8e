"""Training on direct-connect topologies, by a model of its iterations (dissertation, Sec. 3.8.4).

- ``timeline``: an iteration of compute, gradients in buckets and all-to-alls that block;
- ``switch_transformers``: the operations of an iteration under expert parallelism;
- ``networks``: times of all_reduce and all-to-all by topology;
- ``moe`` (Fig. 3.9), ``data_parallel`` (Fig. 3.8): the studies.
"""
