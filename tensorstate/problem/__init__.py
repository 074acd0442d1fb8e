"""The search problem: strategies, placements and live ranges, from the graph and the mesh alone.

In reading order: ``node_strategies`` (how a node runs on a mesh), ``tensor_groups`` (identical
tensors with their producers and consumers), ``reshard`` (collectives between placements),
``execution_order`` and ``liveness`` (when operators run, and tensors are in memory),
``microbatching`` (the step split along its batch), ``problem`` (all of it together), ``baselines``
(restrictions of the strategies, named or the user's).
"""
