"""Objects that have a JSON form, drawn at random, and JSON text with changed fields."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from jaxcoll.io import dumps
from tests import strategies

NETWORKS = (
    strategies.topologies(min_ranks=1, switches=True, exact=True)
    | strategies.grids()
    | strategies.families()
)


OBJECTS = (
    NETWORKS
    | st.integers(1, 8).flatmap(lambda n: strategies.collectives(n))
    | strategies.schedules(networks=strategies.topologies(max_ranks=6, switches=True, exact=True))
)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.fractions(),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def change(obj, **fields) -> str:
    """The JSON of an object with some fields replaced (or, by None of ``...``, removed)."""
    data = json.loads(dumps(obj))
    for path, value in fields.items():
        at, *rest = path.split("__")
        inner = data
        while rest:
            inner, at, *rest = inner[at], *rest
        if value is ...:
            del inner[at]
        else:
            inner[at] = value
    return json.dumps(data)
