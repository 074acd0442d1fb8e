"""Numbers: ``rational``, exact ``max_flow``, ``highs``, argument ``checks``, ``ragged`` rows."""
