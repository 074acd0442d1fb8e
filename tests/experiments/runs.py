"""The small run of every study, made once per session and shared by the tests that look at it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from matplotlib.figure import Figure

from experiments import __main__ as command
from experiments import study
from experiments.config import EXPERIMENTS, configure
from experiments.study import ConfigError, write_figure
from tests.emulation.test_emulation import needs_namespaces

# Studies whose small run takes longer than four seconds, but for one of each kind.
SLOW = (
    *("autoccl-fig-9", "forestcoll-fig-4-11", "forestcoll-fig-4-12a"),
    *("tensorstate-rediscovery", "tensorstate-quickstart"),
    *("autoccl-fig-11", "forestcoll-fig-4-12b"),
    *("autoccl-fig-1", "autoccl-table-6", "autoccl-fig-7", "autoccl-fig-9-measured"),
    *("tacos-table-v", "tacos-fig-15a", "tacos-fig-15b", "tacos-fig-16a", "tacos-fig-16b"),
    *("direct-connect-table-a-1", "tensorstate-regret", "wires"),
)

# Studies on emulated networks.
CABLES = ("wires",)


def marked(names: Iterable[str]) -> list[Any]:
    """The names of studies as cases of a test that runs them."""
    return [
        pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW) + [needs_namespaces] * (n in CABLES))
        for n in names
    ]


@dataclasses.dataclass(frozen=True)
class SmallRun:
    """The output of a study's command at size=ci.

    Attributes:
        printed: its standard output.
        files: the content of the files that it wrote, by name.
    """

    printed: str
    files: Mapping[str, bytes]

    @property
    def content(self) -> dict[str, Any]:
        """What ``rows.json`` holds."""
        return json.loads(self.files["rows.json"])

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the table."""
        return self.content["rows"]


# Through the command, which composes the configuration three times; of the others the study alone.
BY_THE_COMMAND = ("tacos-fig-14", "tensorstate-rediscovery")


@functools.cache
def small_run(name: str) -> SmallRun:
    """The run of a study at size=ci."""
    with tempfile.TemporaryDirectory() as folder:
        printed = io.StringIO()
        arguments = [f"experiment={name}", "size=ci", f"results={folder}"]
        with contextlib.redirect_stdout(printed), mock.patch.object(study, "write_figure", sketch):
            if name in BY_THE_COMMAND:
                assert command.main(arguments) == 0
            else:
                EXPERIMENTS[name].load()(configure(arguments)[1])
        files = {
            path.name: path.read_bytes() for path in Path(folder).glob("*.*") if path.is_file()
        }
    return SmallRun(printed.getvalue(), files)


def sketch(path: Path, figure: Figure) -> Path:
    """The picture of a study, small and with its parts where they were put: half the seconds."""
    figure.set_layout_engine("none")
    return write_figure(path, figure, dpi=40)


# By the first part of the names of studies: the rest of a name, a setting, and the words of the
# error (a regular expression).
REFUSALS: Mapping[str, list[list[str]]] = yaml.safe_load(
    Path(__file__).with_name("refusals.yaml").read_text()
)


def refuses_settings(study: str) -> Callable:
    """A test that studies refuse the settings of ``REFUSALS`` before anything runs.

    Args:
        study: the first part of their names.
    """

    @pytest.mark.parametrize(("name", "setting", "words"), REFUSALS[study])
    def refused(name: str, setting: str, words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            configure([f"experiment={study}{name}", setting])

    return refused
