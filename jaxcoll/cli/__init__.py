"""The command line: ``jaxcoll COMMAND``, or ``python -m jaxcoll COMMAND``.

- ``application``: the commands by name, each loaded when it is called; errors as one line; exit
  codes 0 (done), 1 (a check failed) and 2 (bad usage or input);
- ``quantities``: "256KiB", "0.5us" and "50GB/s", tables and JSON; ``networks``: "torus:4x4" and the
  other names; ``files``: schedules and networks of every format;
- ``schedules``, ``comparing``, ``exploring``, ``tuning``, ``compiling``, ``doctor``: the commands.

Built on click: pure Python without dependencies (typer adds rich, shellingham and itself on top of
click), with completion of names and files for bash, zsh and fish.
"""

from jaxcoll.cli.application import main

__all__ = ["main"]
