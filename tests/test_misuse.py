"""Misuse is refused by name: no raw exception leaves a public function, whatever it is given."""

from __future__ import annotations

import pytest

from jaxcoll import JaxcollError
from tests.misuse import CASES, calls

# Its own network is refused, so that no hostile value can have a folder made.
ALWAYS_REFUSED = {"synthesize_compact"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_what_is_no_argument_is_refused_by_name(name):
    raw = []
    for label, call in calls(name):
        try:
            call()
        except JaxcollError as error:
            if label == "as meant" and name not in ALWAYS_REFUSED:
                raw.append(f"{label}: {error}")
        except Exception as error:
            raw.append(f"{label}: {type(error).__name__}: {error}")
    assert not raw
