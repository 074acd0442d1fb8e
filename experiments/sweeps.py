"""Sweeps: runs of an experiment that go on where they were stopped, and their rows in one table.

A run leaves its configuration beside its results when it has ended. The same sweep in the same
folder (``hydra.sweep.dir=FOLDER``) skips runs whose configuration is found there. When all jobs of
a sweep have ended, ``rows.csv`` in its folder holds the rows of all, with the overrides of each.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from jaxcoll.io.files import read_text, write_text

ENDED, ROWS = "ended.yaml", "rows.csv"


def has_ended(composed: DictConfig, folder: Path) -> bool:
    """Whether a run of this configuration has ended in a folder."""
    path = folder / ENDED
    return path.is_file() and read_text(path) == _said(composed)


def mark_ended(composed: DictConfig, folder: Path) -> None:
    """Note that a run of this configuration has ended in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / ENDED, _said(composed))


def _said(composed: DictConfig) -> str:
    return OmegaConf.to_yaml(composed, resolve=True)


class Gather(Callback):
    """Writes the rows of all runs of a sweep to one table, once its jobs have ended."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Called by Hydra where the sweep was started, whatever its launcher."""
        gather(Path(config.hydra.sweep.dir))


def gather(folder: Path) -> None:
    """Write ``rows.csv`` of a sweep: the rows of its runs in their order, overrides first."""
    rows: list[dict[str, str]] = []
    runs = [path for path in folder.iterdir() if path.name.isdigit() and (path / ROWS).is_file()]
    for run in sorted(runs, key=lambda path: int(path.name)):
        given = OmegaConf.to_container(OmegaConf.load(run / ".hydra" / "overrides.yaml"))
        overrides = dict(str(each).split("=", 1) for each in given)  # type: ignore[union-attr]
        for row in csv.DictReader(io.StringIO(read_text(run / ROWS))):
            rows.append({**overrides, **row})
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer: csv.DictWriter[str] = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(folder / ROWS, text.getvalue())
