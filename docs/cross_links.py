"""A Sphinx extension: code that is a public name becomes a link to its place in the API.

``jc.psum(x, "rank")`` in a page links to ``jaxcoll.psum``; a class may also be named without its
module. Docstrings stay as they are read in a terminal, without roles.
"""

from __future__ import annotations

import re

from docutils import nodes

_NAME = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(\(.*\))?$", re.DOTALL)


def targets(objects) -> dict[str, tuple[str, str]]:
    """Page and anchor by every name that a reader may write, of the Python domain's objects."""
    found: dict[str, tuple[str, str]] = {}
    bare: dict[str, set[str]] = {}
    for name, entry in objects.items():
        place = (entry.docname, entry.node_id)
        found[name] = place
        if name.startswith("jaxcoll."):
            found[name.replace("jaxcoll.", "jc.", 1)] = place
        if entry.objtype == "class":
            bare.setdefault(name.rpartition(".")[2], set()).add(name)
    # Without its module a name must be the only one of its kind.
    found.update({short: found[min(names)] for short, names in bare.items() if len(names) == 1})
    return found


def _link(app, doctree, docname: str) -> None:
    known = targets(app.env.domains["py"].objects)
    for literal in list(doctree.findall(nodes.literal)):
        match = _NAME.match(literal.astext())
        place = known.get(match["name"]) if match else None
        if place is None or isinstance(literal.parent, nodes.reference | nodes.title):
            continue
        page, anchor = place
        uri = app.builder.get_relative_uri(docname, page) + f"#{anchor}"
        link = nodes.reference("", "", internal=True, refuri=uri)
        literal.replace_self(link)
        link += literal


def setup(app) -> dict[str, bool]:
    app.connect("doctree-resolved", _link)
    return {"parallel_read_safe": True}
