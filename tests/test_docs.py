"""The pages under docs/ run as printed, and the files they point to exist."""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxcoll import compact, pages
from jaxcoll.execute.choice.measured_costs import FORMAT
from jaxcoll.finder import entry
from jaxcoll.io import files
from jaxcoll.io import json as io_json
from jaxcoll.io.msccl import program
from jaxcoll.tune import table_file
from tests.claims.printed import false_claims, marked, separated
from tests.elsewhere import Forking
from tests.execute.meshes.xla_flags import cpu_devices

DOCS = Path(__file__).parents[1] / "docs"


def text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def run_page(page: str, blocks: int, folder: Path) -> list[str]:
    """The lines that a page's code prints."""
    code = blocks_of(page)
    assert len(code) == blocks
    return run_code(code, folder)


# Of one device, as a laptop has: a page that needs more makes them.
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": cpu_devices(1).split(" ", 1)[1]}


@functools.cache
def forking() -> Forking:
    """Processes that have imported the libraries."""
    made = Forking(ENVIRONMENT)
    atexit.register(made.close)
    return made


def run_code(code: list[str], folder: Path, *, imported: bool = True) -> list[str]:
    """The lines that blocks of code print, one after the other in one process.

    Their comments say what they print.

    Args:
        imported: begin where the libraries are imported already.
    """
    program = marked("\n".join(code))
    if imported:
        done = forking().run(program, folder)
    else:
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=folder,
            env=ENVIRONMENT,
            check=False,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    output, printed = separated(done.stdout)
    assert list(false_claims("\n".join(code), printed)) == []
    return output.splitlines()


def blocks_of(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text(page), re.DOTALL)


# Pages whose printed lines are compared: below, and those of execution.md beside the code it shows.
COMPARED = {"training.md", "tuner.md", "tensorstate.md", "execution.md"}
COMPARED |= {"flax-script.md", "explicit-script.md"}
# In processes of its own: tests/emulation.
COMPARED |= {"emulation.md"}
# The second block compiles for a TPU slice.
RUN_BLOCKS = {"targets.md": 1}


WITH_CODE = sorted(path.name for path in DOCS.glob("*.md") if blocks_of(path.name))


# Over ten seconds each: a tuner settles, and long searches run.
SLOW = {"tuner-online.md", "direct-connect.md"}


# Says what it imports.
IMPORTING = {"install.md"}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] * (page in SLOW))
        for page in WITH_CODE
        if page not in COMPARED
    ],
)
def test_the_code_of_a_page_runs(page, tmp_path):
    run_code(blocks_of(page)[: RUN_BLOCKS.get(page)], tmp_path, imported=page not in IMPORTING)


@pytest.mark.targets("tpu")
def test_the_page_of_targets_compiles_for_a_slice(tmp_path):
    run_code(blocks_of("targets.md"), tmp_path)


def test_the_training_page_trains(tmp_path):
    losses = map(float, run_page("training.md", 9, tmp_path))
    first, fed, second, two_axes, flax, nnx, converted, third = losses
    assert fed < first
    assert second < first < 0.5
    assert two_axes < 1
    # Both go on from the parameters that were trained.
    assert flax < second
    assert converted < second
    assert nnx < 2
    assert third < 2


def test_the_page_of_the_tuner_searches(tmp_path):
    points, share, *table = run_page("tuner.md", 2, tmp_path)
    assert points == "251,658,240"
    assert float(share) > 0.95
    assert any(line.split()[:3] == ["all_reduce", "float32", "8"] for line in table)


def test_the_page_of_plans_plans_and_runs(tmp_path):
    printed = run_page("tensorstate.md", 9, tmp_path)
    assert printed[1].startswith("= ")
    assert any("megatron" in line for line in printed)
    assert any(line.startswith("params/up: parameter") for line in printed)
    found = [re.fullmatch(r"loss ([\d.]+), on one device ([\d.]+)", line) for line in printed]
    losses = [loss for loss in found if loss is not None]
    assert len(losses) == 2
    for loss in losses:
        assert float(loss[1]) == pytest.approx(float(loss[2]), rel=1e-5)
    counts = [re.fullmatch(r"(\d+) microbatches", line) for line in printed]
    assert [int(count[1]) > 1 for count in counts if count is not None] == [True]
    assert any("pipeline parallel (4 stages, 8 microbatches" in line for line in printed)
    assert any("context parallel (ring attention)" in line for line in printed)
    assert any("a part of the experts, to which rows are sent" in line for line in printed)
    assert printed[-2].startswith("a plan of ")
    assert printed[-1].endswith(" True")


@pytest.mark.parametrize(
    ("page", "name", "within"),
    [
        ("flax-script.md", "train", 2e-3),
        pytest.param("explicit-script.md", "decoder", 1e-2, marks=pytest.mark.slow),  # bfloat16
    ],
)
def test_a_script_trains_under_a_plan_of_another_process(
    page, name, within, tmp_path, capsys, monkeypatch
):
    """The losses are those of one device; at most five lines of the script are changed."""
    script, search, changed = blocks_of(page)
    assert changed.count("# new") + changed.count("# was: ") <= 5
    (tmp_path / f"{name}.py").write_text(script, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(name)
    monkeypatch.setitem(sys.modules, name, module)
    with monkeypatch.context() as one_device:
        if hasattr(module, "MESH"):
            one_device.setattr(module, "MESH", dict.fromkeys(module.MESH, 1))
        module.main()
    alone = [float(line) for line in capsys.readouterr().out.splitlines()]
    exec(search, {})
    # As with JAX_NUM_CPU_DEVICES=8 in the environment, which the pages say.
    devices = 'import jax\njax.config.update("jax_num_cpu_devices", 8)\n'
    found = [float(line) for line in run_code([devices, changed], tmp_path)]
    assert found == pytest.approx(alone, abs=within)
    assert found[-1] < 0.7 * found[0]


def test_the_cluster_described_by_hand_has_its_switch(tmp_path):
    printed = run_code(blocks_of("my-cluster.md")[:2], tmp_path)
    assert printed == ["Topology(4 ranks, 1 switches, 10 links)"]


def test_two_lines_of_the_step_are_changed():
    assert text("training.md").count("# was: ") == 2


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_links_lead_to_files(page):
    """Those into reference/ lead to pages that are made from the code: tests/test_site.py."""
    for target in re.findall(r"\]\(([^)#:]+)\)", text(page)):
        assert target.startswith("reference/") or (DOCS / target).is_file()


ROOT = DOCS.parent
PAGES = [*sorted(DOCS.glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_name_modules_that_exist(page):
    """By the end of their path; capitals stand for a name of the reader's choice."""
    folders = ("jaxcoll", "tensorstate", "experiments", "tests")
    modules = [str(path.relative_to(ROOT)) for f in folders for path in (ROOT / f).rglob("*.py")]
    named = re.findall(r"`([\w/]+\.py)`", page.read_text(encoding="utf-8"))
    fixed = [name for name in named if not re.search(r"[A-Z]{2}", name)]
    missing = [name for name in fixed if not any(f"/{m}".endswith(f"/{name}") for m in modules)]
    assert missing == []


def test_the_architecture_page_names_files_and_folders_of_its_tables():
    for package in ("jaxcoll", "tensorstate", "experiments"):
        table = text("architecture.md").partition(f"## {package}\n")[2].partition("## ")[0]
        rows = [row.split("|")[1] for row in table.splitlines()[4:] if row.startswith("|")]
        paths = [name for row in rows for name in re.findall(r"`([\w/]+(?:\.py|/))`", row)]
        assert len(paths) > 8
        assert [path for path in paths if not (ROOT / package / path).exists()] == []


def test_the_page_of_formats_has_the_versions_and_limits_of_the_code():
    page, rows = text("formats.md"), {}
    for row in re.findall(r"^\| (.*?) \| (.*?) \|$", page.partition("## Limits")[2], re.MULTILINE):
        numbers = re.findall(r"\d[\d,]*\d", row[1])
        rows[row[0]] = [int(number.replace(",", "")) for number in numbers]
    assert rows["bytes of a file that is read"][0] == files.MAX_BYTES
    assert rows["ranks of a collective"] == [io_json.MAX_RANKS]
    assert rows["chunks of a collective"] == [io_json.MAX_CHUNKS]
    assert rows["vertices beyond twice the links"] == [io_json.MAX_FREE_VERTICES]
    blocks = rows["MSCCL: instructions of a block; blocks of a rank (`azure`); channels"]
    msccl, azure = program.RUNTIMES["msccl"], program.RUNTIMES["azure"]
    assert blocks == [msccl.instructions, msccl.blocks, azure.blocks, msccl.channels]
    elements = rows["MSCCL: elements that a rank reads, characters of a name"]
    assert elements == [program.MOST_ELEMENTS, program.MOST_CHARACTERS]
    chunks = rows["MSCCL: chunks of one instruction, of a buffer"]
    assert chunks == [program.MOST_COUNT, program.MOST_CHUNKS]
    assert rows["MSCCL: ranks of a program that is read"] == [program.MOST_RANKS]
    shown = rows["a page: messages on links, links with a row"]
    assert shown == [2 * pages.MOST_HOPS, pages.MOST_ROWS]
    formats = (io_json.TOPOLOGY, io_json.COLLECTIVE, io_json.SCHEDULE, FORMAT, entry.FORMAT)
    for name in (*formats, f"{table_file.FORMAT}` {table_file.VERSION}", compact._FORMAT):
        assert f"`{name}" in page
