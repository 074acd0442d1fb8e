"""Ahead-of-time compilation for TPU slices and GPU clusters, on a machine without them.

    v5p = aot.target("v5p:4x4x4")
    compiled = aot.compile_for(v5p, f, (shape,), in_specs=P("i"), out_specs=P("i"))
    aot.summarize(compiled).in_flight

This shows that a program compiles, which messages are in flight together, and how much memory it
takes. It times nothing. Read in this order: ``targets`` (the devices), ``hlo`` (the
text of a compiled program), ``summary``.
"""

from jaxcoll.aot.hlo import Instruction, Module, parse
from jaxcoll.aot.summary import Burst, Summary, summarize, summarize_module
from jaxcoll.aot.targets import (
    ENVIRONMENT,
    GPUS,
    TPUS,
    Target,
    compile_for,
    is_available,
    requirements,
    target,
)

__all__ = [
    "ENVIRONMENT",
    "GPUS",
    "TPUS",
    "Burst",
    "Instruction",
    "Module",
    "Summary",
    "Target",
    "compile_for",
    "is_available",
    "parse",
    "requirements",
    "summarize",
    "summarize_module",
    "target",
]
