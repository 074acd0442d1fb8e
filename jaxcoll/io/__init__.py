"""Files: one format a module. ``load`` and ``save`` here are those of the library's own JSON."""

from jaxcoll.io.json import dumps, load, loads, save

__all__ = ["dumps", "load", "loads", "save"]
