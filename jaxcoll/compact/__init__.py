"""Schedules on disk.

- ``compact_schedule``: two bytes and a bit per send, in a folder of mapped files;
- ``drafts``: files and folders under a name of their own until they are whole.
"""

from jaxcoll.compact.compact_schedule import (
    CompactSchedule,
    CompactWriter,
    check_compact,
    open_compact,
)

__all__ = ["CompactSchedule", "CompactWriter", "check_compact", "open_compact"]
