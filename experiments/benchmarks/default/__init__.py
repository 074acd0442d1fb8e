"""The default of ``jc.synthesize`` against an exhaustive search, and on users' networks."""
