"""Benchmarks of searches for plans."""
