"""Misuse of readers: files that are broken."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from jaxcoll.errors import FormatError

LONGEST = 300  # characters of a refusal, whatever the file holds


def refuses_files(loads: Callable[[str], object], broken: Callable[[], Mapping[str, str]]):
    """A test that a reader refuses broken files, each in few words.

    Args:
        loads: reads the text of a file.
        broken: the texts, by their fault.
    """

    @pytest.mark.parametrize("how", broken())
    def refused(how: str) -> None:
        with pytest.raises(FormatError) as caught:
            loads(broken()[how])
        assert len(str(caught.value)) < LONGEST

    return refused
