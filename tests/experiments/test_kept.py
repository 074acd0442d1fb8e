"""Whatever is kept has a row that says for whom, and evidence that can be looked up."""

from __future__ import annotations

import json

import pytest

from experiments import choosing, kept
from jaxcoll.synth import SYNTHESIZERS

PARTS = (*kept.TUNER, *kept.FORMATS)


@pytest.mark.parametrize("folder", ["tune", "io"])
def test_every_file_of_the_tuner_and_of_formats_has_one_row(folder):
    listed = [
        file
        for part in PARTS
        for path in part.paths
        for file in ([path] if path.is_file() else path.rglob("*.py"))
    ]
    assert len(listed) == len(set(listed))
    found = {
        file
        for file in (kept.ROOT / "jaxcoll" / folder).rglob("*.py")
        if file.name != "__init__.py" or len(file.read_text().splitlines()) > 40
    }
    assert found <= set(listed)


def test_all_evidence_can_be_looked_up():
    for part in PARTS:
        assert part.lines > 0, part.name
        assert (kept.ROOT / part.proof).is_file(), part.proof
    for _, proof in kept.OTHERWISE.values():
        assert (kept.ROOT / proof).is_file(), proof


def test_every_synthesizer_wins_somewhere_or_has_another_reason():
    cases = json.loads(kept.COUNTED.read_text()).values()
    won = {count.name for count in choosing.counts(cases) if count.fastest}
    assert not won & set(kept.OTHERWISE)
    assert won | set(kept.OTHERWISE) == set(SYNTHESIZERS)


def test_the_page_has_a_row_for_each():
    page = kept.PAGE.read_text(encoding="utf-8")
    for name in (*(part.name for part in PARTS), *(f"`{name}`" for name in SYNTHESIZERS)):
        assert f"| {name} |" in page, name
