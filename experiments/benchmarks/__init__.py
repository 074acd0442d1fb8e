"""Benchmarks, one a module; `python -m experiments.benchmarks` lists them.

A benchmark is a module here that defines ``main(argv)``; the list shows the first line of its
docstring.
"""
