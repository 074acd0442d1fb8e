"""How tensors that the backward pass reads are kept until it does.

``base`` says what a keeping is, a file for each of them follows, and ``table`` lists them all.
"""
