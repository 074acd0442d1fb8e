"""Patterns that are written down, not searched, and are fast where networks have dimensions.

``cascade`` gathers along one dimension of a grid after another, chunk by chunk. ``exchange`` is an
all_to_all by dimensions, with one message for all chunks on one way. ``rail_gather`` is for hosts
on rails. Those of papers stand in ``jaxcoll.synth.baselines``.
"""
