"""The ways to keep tensors of the forward pass until the backward pass reads them.

``base`` defines a keeping, each other file defines one keeping, and ``table`` lists them all.
"""
