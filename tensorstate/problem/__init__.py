"""The search problem: strategies, placements and live ranges, from the graph and the mesh alone.

In reading order: ``strategies`` (how a node runs on a mesh), ``reshard`` (collectives between
placements), ``tensor_groups`` (identical tensors with their producers and consumers), ``liveness``
(when a tensor is in memory), ``microbatching`` (the step split along its batch), ``problem`` (all
of it together), ``baselines`` and ``constraints`` (restrictions of the strategies).
"""
