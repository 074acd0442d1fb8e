"""XML that is not trusted: elements with their lines, within bounds, without entities.

A document type may be named, as in hwloc; it is not read, and one that declares anything is
refused, because a few lines of entities can grow to any size.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from xml.parsers import expat

from jaxcoll.errors import FormatError, shown
from jaxcoll.numerics import checks

_MOST_DEPTH, _MOST_ATTRIBUTES, _MOST_CHARACTERS = 64, 32, 2**12
# So many digits certainly fit an int64; Python would read a number of any length, slowly.
_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Element:
    """A tag with its attributes and the elements in it; ``line`` is where it was read.

    ``inner`` is its text, for tags whose text is kept. Elements are equal if everything but their
    lines is equal.
    """

    tag: str
    said: dict[str, str]
    children: tuple[Element, ...] = ()
    line: int = dataclasses.field(default=0, compare=False)
    inner: str = ""

    @property
    def place(self) -> str:
        """The element as errors name it."""
        return f"line {self.line}: <{self.tag[:40]}>" if self.line else f"<{self.tag[:40]}>"

    def text(self, key: str) -> str:
        """An attribute.

        Raises:
            FormatError: there is no attribute with this name.
        """
        if key not in self.said:
            raise FormatError(f"{self.place} lacks the attribute {key!r}")
        return self.said[key]

    def integer(self, key: str, least: int, most: int, default: int | None = None) -> int:
        """An attribute as an integer between bounds; ``default`` if it is missing.

        Raises:
            FormatError: it is missing without a default, or is not such an integer.
        """
        if default is not None and key not in self.said:
            return default
        text = self.text(key)
        if not _INTEGER.fullmatch(text) or not least <= int(text) <= most:
            raise FormatError(
                f"{self.place}: {key} must be an integer from {least} to {most}, got {shown(text)}"
            )
        return int(text)

    def number(self, key: str, default: float | None = None) -> float:
        """An attribute as a number of at least 0; ``default`` if it is missing.

        Raises:
            FormatError: it is missing without a default, or is not such a number.
        """
        if default is not None and key not in self.said:
            return default
        text = self.text(key)
        if not _NUMBER.fullmatch(text):
            raise FormatError(f"{self.place}: {key} must be a number from 0, got {shown(text)}")
        return float(text)

    def each(self, *tags: str) -> Iterator[Element]:
        """The children of some kinds."""
        return (child for child in self.children if child.tag in tags)


class _Reader:
    """Handlers for Expat, and an element under construction for every open tag.

    ElementTree is not used: it resolves entities, keeps no lines for errors, and builds a tree of
    any depth and size before it can be counted.
    """

    def __init__(self, most: int, text_in: frozenset[str], kept: bool, nested: Sequence[str]):
        self.text_in, self.kept, self.nested = text_in, kept, nested
        self.parser = expat.ParserCreate("utf-8")
        self.open: list[tuple[str, dict[str, str], list[Element], int]] = []
        self.inner: list[str] = []
        self.root: Element | None = None
        self.left = most
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.characters
        # Entities that hold ten of another one, ten deep, make 10^10 characters of a kilobyte;
        # external ones read files. They are refused where they are declared, before any is used.
        self.parser.EntityDeclHandler = self.refuse
        self.parser.ProcessingInstructionHandler = self.refuse
        self.parser.SkippedEntityHandler = self.refuse
        if nested:
            self.parser.StartDoctypeDeclHandler = self.refuse

    def start(self, tag: str, said: dict[str, str]) -> None:
        line, self.left = self.parser.CurrentLineNumber, self.left - 1
        longest = max(map(len, (tag, *said, *said.values())))
        for number, most, what in (
            (len(self.open), _MOST_DEPTH, "deep"),
            (len(said), _MOST_ATTRIBUTES, "attributes"),
            (longest, _MOST_CHARACTERS, "characters of a name or value"),
        ):
            if number > most:
                raise FormatError(f"line {line}: <{tag[:40]}>: more than {most} {what}")
        if self.left < 0:
            raise FormatError(f"line {line}: more elements than are read")
        if self.nested:
            depth = len(self.open)
            expected = self.nested[depth] if depth < len(self.nested) else "nothing"
            if tag != expected:
                raise FormatError(f"line {line}: expected <{expected}>, got <{tag[:40]}>")
        self.open.append((tag, said, [], line))

    def end(self, _: str) -> None:
        tag, said, children, line = self.open.pop()
        made = Element(tag, said, tuple(children), line, "".join(self.inner))
        self.inner = []
        if self.open:
            self.open[-1][2].append(made)
        else:
            self.root = made

    def characters(self, text: str) -> None:
        # Other parsers skip text between tags, or stop at it: a file with stray digits would have a
        # meaning for one tool and none for another.
        if text.strip() and self.open[-1][0] not in self.text_in:
            raise FormatError(
                f"line {self.parser.CurrentLineNumber}: text inside <{self.open[-1][0][:40]}>, "
                f"{shown(text.strip())}; only tags are read"
            )
        if self.kept and self.open[-1][0] in self.text_in:
            self.inner.append(text)

    def refuse(self, *_: object) -> None:
        raise FormatError(
            f"line {self.parser.CurrentLineNumber}: entities and instructions are not read"
            f"{', nor a document type' if self.nested else ''}"
        )


def parsed(
    text: str,
    root: str,
    most: int = 2**16,
    text_in: frozenset[str] = frozenset(),
    kept: bool = False,
    nested: Sequence[str] = (),
) -> Element:
    """The root element of XML text.

    Args:
        root: the tag that it must have.
        most: the most elements.
        text_in: tags that may hold text, and only text if it is kept.
        kept: whether their text is kept.
        nested: the only tag at every depth, for formats without a document type that have one tag.

    Raises:
        FormatError: the text is not XML or is cut short, has another root, more elements or more
            depth than are read, text between tags, or entities.
    """
    checks.text(text, "text", FormatError)
    reader = _Reader(most, text_in, kept, nested)
    try:
        reader.parser.Parse(text, True)
    except expat.ExpatError as error:
        raise FormatError(f"not XML, or cut short: {error}") from None
    except UnicodeEncodeError:  # half of a surrogate pair
        raise FormatError("not XML: it has characters that no file holds") from None
    if reader.root is None or reader.root.tag != root:
        found = "nothing" if reader.root is None else f"<{reader.root.tag[:40]}>"
        raise FormatError(f"expected <{root}>, got {found}")
    return reader.root


# Line breaks, too: a parser returns those of an attribute as spaces unless they are escaped.
_ESCAPES = {"&": "&amp;", "<": "&lt;", '"': "&quot;", "\n": "&#10;", "\t": "&#9;", "\r": "&#13;"}


def written(element: Element) -> str:
    """The text of an element, one element per line, as NCCL's own parser reads it."""
    # That parser (src/graph/xml.cc) needs double quotes, one space between attributes, and a whole
    # tag on a line; everything else about the form is free.
    lines: list[str] = []

    def write(each: Element, depth: int) -> None:
        said = "".join(
            f' {key}="{"".join(_ESCAPES.get(c, c) for c in value)}"'
            for key, value in each.said.items()
        )
        indent = "  " * depth
        lines.append(f"{indent}<{each.tag}{said}{'' if each.children else '/'}>")
        for child in each.children:
            write(child, depth + 1)
        if each.children:
            lines.append(f"{indent}</{each.tag}>")

    write(element, 0)
    return "\n".join(lines) + "\n"
