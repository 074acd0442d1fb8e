"""Messages of the library in the words of the command line: "give --ranks" for "give ranks=".

The library spells its arguments as in Python, with "=" after them and perhaps a value. Here each is
replaced by the option that stands for it: an option of the command that was typed, or of ``synth``
if it belongs to making schedules. If the command line has no such option, the argument's name
stays, marked as Python's. Quotations in a message and printed objects stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import click

# Arguments of readers and functions that have differently named options, or need a value.
_SAID = {
    "nbytes": "--size", "sizes": "--size", "inside": "the first of --bandwidth",
    "network": "the second of --bandwidth",
}  # fmt: skip
# Quotations; printed objects, perhaps cut; then a name with its value, if one is given.
_ARGUMENT = re.compile(
    r"""(?<!\w)'[^'\n]*' | (?<!\w)"[^"\n]*"
    | \b[A-Z]\w*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\) | \b[A-Z]\w*\([^;\n]*?\.\.\.
    | (?<![-\w.'"/<])(?P<name>[a-z][a-z_]{2,40})=
      (?P<value>'[^'\s]*' | \([^()\s]*\) | [A-Za-z]\w*(?:\.\w+)* | -?\d[\w.]*)?""",
    re.VERBOSE,
)
_MUST = re.compile(r"(?P<before>^|: )(?P<name>[a-z_]+)(?P<after> must be )")


def in_options(message: str, command: click.Command | None) -> str:
    """A message of the library as it reads after a command.

    Args:
        command: the command that was typed; None before one is known.
    """
    known = _parameters(command)

    def said(found: re.Match) -> str:
        return found[0] if found["name"] is None else _said(known, found["name"], found["value"])

    def named(found: re.Match) -> str:
        param = known.get(found["name"])
        if not isinstance(param, click.Option):
            return found[0]
        return f"{found['before']}{_longest(param)}{found['after']}"

    return _MUST.sub(named, _ARGUMENT.sub(said, message))


def _parameters(command: click.Command | None) -> Mapping[str, click.Parameter]:
    params = [] if command is None else command.params
    return {param.name: param for param in params if param.name}


def _said(known: Mapping[str, click.Parameter], name: str, value: str | None) -> str:
    value = (value or "").strip("'")
    param = known.get(name)
    if isinstance(param, click.Option):
        return _option(param, value)
    if name in _SAID:
        return f"{_SAID[name]} {value}".rstrip()
    if param is not None:
        return name.upper()
    from jaxcoll.cli.schedules import synth

    other = _parameters(synth).get(name)
    if isinstance(other, click.Option):
        return f"{_option(other, value)} of jaxcoll synth"
    # Options of a synthesizer, which can be given only in Python.
    return f"{name} {value}".rstrip() + " (in Python)"


def _option(param: click.Option, value: str) -> str:
    return _longest(param) if param.is_flag else f"{_longest(param)} {value}".rstrip()


def _longest(param: click.Option) -> str:
    return max(param.opts, key=len)
