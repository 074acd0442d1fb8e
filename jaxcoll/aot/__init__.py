"""Compiling for machines that are not here, and reading what the compiler made of a program.

    v5p = aot.target("v5p:4x4x4")
    compiled = aot.compile_for(v5p, f, (shape,), in_specs=P("i"), out_specs=P("i"))
    aot.summarize(compiled).in_flight

Shows that a program compiles, what is in flight together, and memory. It times nothing.
"""

from jaxcoll.aot.compiling import compile_for
from jaxcoll.aot.hlo import Instruction, Module, parse
from jaxcoll.aot.summary import Burst, Summary, summarize, summarize_module
from jaxcoll.aot.targets import (
    ENVIRONMENT,
    GPUS,
    TPUS,
    Target,
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
