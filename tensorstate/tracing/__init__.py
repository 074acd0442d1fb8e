"""From a Python function to its factor graph.

In reading order: ``trace_step`` (the public function ``trace``), ``inline`` (calls inlined, scans
unrolled, and the flat program that this gives), ``propagate`` (dimensions that share a
factor), ``build`` (tensors and operators), ``node_classes`` (fused chains, and identical nodes of
identical layers).
"""
