"""Numbers and arguments, below everything else.

``rational`` and ``max_flow`` are exact; ``heap`` is the one binary heap of compiled kernels;
``highs`` runs linear and integer programs; ``checks`` validates arguments; ``ragged`` holds rows of
unequal lengths.
"""
