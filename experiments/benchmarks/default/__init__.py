"""The default of ``jc.synthesize`` against an exhaustive search (``default``)."""
