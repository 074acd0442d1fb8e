"""Benchmarks, one per module; `python -m experiments.benchmarks` lists them.

A benchmark is a module here, or in a folder here, that defines ``main(argv)``; its name is the
module's, and the list shows the first line of its docstring. ``report`` prints and writes the
measurements of all.
"""
