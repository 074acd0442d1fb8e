"""From a Python function to its factor graph.

In reading order: ``trace_step`` (the public function), ``inline`` (calls inlined, scans unrolled),
``flat_jaxpr`` (the result of that), ``factors`` and ``propagate`` (which dimensions are one),
``build`` (tensors and operators), ``phases`` (forward, backward, optimizer), ``node_classes``
(identical nodes of identical layers).
"""
