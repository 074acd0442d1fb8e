"""Writes docs/experiments.md: every study, what it shows, and its numbers beside the paper's.

Numbers are those of the last run at size=paper where there is one (results/NAME/paper), otherwise
of a run at size=ci, which is made now. ``python -m experiments.overview [NAME ...]`` runs the named
studies at size=paper first.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.__main__ import main as run_experiment
from experiments.configure import CONFIGS, EXPERIMENTS, SIZES
from jaxcoll.io.files import write_text

RESULTS = Path("results")
PAGE = Path(__file__).parents[1] / "docs" / "experiments.md"
PAPER = "paper "
MOST = 8  # numbers a study
# Where a sentence ends; not after "Fig." or "Sec.".
_SENTENCE = re.compile(r"(?<!Fig)(?<!Sec)\. (?=[A-Z]|size=)")
# Notes that every study has, and those on algorithms that a network is not for.
_USUAL = ("Link model", "A small run")
_REFUSAL = re.compile("is not defined|is for tiny networks|found no schedule")

_HEAD = """# Experiments

Every study is one command. It prints its table, and what differs from the paper and why, and writes
`rows.json`, `rows.csv` and `figure.png` to `results/NAME/SIZE/`:

```
scripts/run experiment=NAME             # size=ci: seconds, tested
scripts/run experiment=NAME size=paper  # the paper's setting; its YAML says how long
```

Settings, with their source in the paper, are in `configs/experiment/NAME.yaml`; any can be changed
on the command line. Nothing here ran on the papers' hardware: times are simulated link by link, and
seconds of synthesis are those of the machine that made this page, two shared cores. The page is
made by `python -m experiments.overview`. A number in brackets is what the paper prints for the same
thing; at size=ci networks may be smaller than the paper's.

| `experiment=` | what it shows | ours (the paper's) | size |
| --- | --- | --- | --- |
"""


def studies() -> list[str]:
    """The experiments that have sizes, in order."""
    return [name for name in EXPERIMENTS if "\nsize:" in _settings(name)]


def shows(name: str) -> str:
    """The first sentence of a study's settings."""
    lines = [line for line in _settings(name).splitlines() if line.startswith("# ")]
    text = " ".join(line[2:] for line in lines[1:])
    return _SENTENCE.split(text, maxsplit=1)[0].rstrip(".")


def _settings(name: str) -> str:
    return (CONFIGS / "experiment" / f"{name}.yaml").read_text()


def published(name: str) -> tuple[str, dict[str, Any]]:
    """The size and the content of a study's last results; of a small run made now if none."""
    for size in reversed(SIZES):
        path = RESULTS / name / size / "rows.json"
        if not path.is_file() and size == SIZES[0]:
            run_experiment([f"experiment={name}", f"size={size}", f"results={path.parent}"])
        if path.is_file():
            return size, json.loads(path.read_text())
    raise FileNotFoundError(f"{name} left no rows in {RESULTS / name}")


def pairs(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """``what: ours (the paper's)`` for every number that the paper prints; means come first."""
    for row in sorted(rows, key=lambda row: not any("mean" in str(v) for v in row.values())):
        text: list[str] = []
        for column, value in row.items():
            ours = _ours(row, column)
            if ours is None or value is None:
                text += [value] if isinstance(value, str) and value not in ("all", "mean") else []
            else:
                what = ", ".join([*text, *([column.removeprefix(PAPER)] * (column != "paper"))])
                yield f"{what}: {_number(ours)} ({_number(value)})"


def _ours(row: Mapping[str, Any], column: str) -> object:
    """What stands beside a column of the paper's; None if the column is none."""
    if column == "paper":
        return row.get("ours")
    if not column.startswith(PAPER):
        return None
    name = column.removeprefix(PAPER)
    alike = [c for c in row if c.endswith(name) and not c.startswith(PAPER)]
    return row[name] if name in row else row[alike[0]] if alike else None


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def line(name: str, size: str, content: Mapping[str, Any]) -> str:
    """A study's line of the table."""
    found = list(pairs(content["rows"]))
    if len(found) > MOST:
        found = [*found[:MOST], f"and {len(found) - MOST} more"]
    cells = [f"`{name}`", shows(name), "<br>".join(found), size]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def sentences(notes: Sequence[str]) -> list[str]:
    """The notes that say what differs; one with a small first letter goes on with the last."""
    found: list[str] = []
    for note in notes:
        if note.startswith(_USUAL) or _REFUSAL.search(note):
            continue
        if found and (note[0].islower() or note[0] == " "):
            found[-1] += " " + note.strip()
        else:
            found.append(note)
    return found


def page(names: Sequence[str]) -> str:
    """The whole page."""
    lines, notes = [], []
    for name in names:
        size, content = published(name)
        lines.append(line(name, size, content))
        said = sentences(content["notes"])
        if said:
            notes += ["", f"**{name}**", "", *(f"- {note}" for note in said)]
    return _HEAD + "\n".join([*lines, "", "## What differs, and why", *notes, ""])


def main(names: Sequence[str]) -> int:
    """Runs the studies named at size=paper, and writes the page."""
    for name in names:
        results = f"results={RESULTS / name / 'paper'}"
        if run_experiment([f"experiment={name}", "size=paper", results]):
            return 1
    write_text(PAGE, page(studies()))
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
