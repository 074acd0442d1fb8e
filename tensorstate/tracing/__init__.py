"""From a Python function to its factor graph.

In reading order: ``trace_step`` (the public function ``trace``), ``inline`` (calls inlined, loops
kept or unrolled), ``flat`` (the resulting program, and the boundaries of its loops), ``propagate``
(dimensions that share a factor), ``build`` (tensors and operators), ``phases`` and ``roles`` (of
operators and of tensors), ``node_classes`` (fused chains, and identical nodes of identical layers).
"""
