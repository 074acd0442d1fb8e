"""The search problem: strategies, placements and live ranges, from the graph and the mesh.

In reading order: ``node_strategies`` (the ways to run a node on a mesh), ``tensor_groups``
(identical tensors with their producers and consumers), ``reshard`` (collectives between
placements), ``execution_order`` and ``liveness`` (when operators run, and when tensors are in
memory), ``microbatching`` (the step split along its batch), ``problem`` (all of these together),
``baselines`` (restrictions of the strategies, named or the user's).
"""
