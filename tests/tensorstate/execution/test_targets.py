"""Plans compile for machines that are not here; ``scripts/test --targets`` brings the compilers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.elsewhere import ROOT, compiled_elsewhere


@pytest.mark.parametrize(
    ("name", "sides"),
    [
        pytest.param("v5e:4x4", (4, 4), id="v5e:4x4", marks=pytest.mark.targets("tpu")),
        pytest.param("h100:8", (2, 4), id="h100:8", marks=pytest.mark.targets("gpu")),
    ],
)
def test_a_plan_compiles_with_either_kind_of_collectives(name, sides):
    worker = Path(__file__).with_name("compile_plan.py")
    native, scheduled = compiled_elsewhere(worker, name, *map(str, sides))
    assert native["all-reduce"] > 0
    assert native["collective-permute"] == 0
    assert scheduled["all-reduce"] == 0
    assert scheduled["collective-permute"] > native["all-reduce"]


def rows_of_the_page() -> list[list[str]]:
    """The table of docs/tensorstate.md, by cells."""
    page = (ROOT / "docs/tensorstate.md").read_text(encoding="utf-8")
    table = page.partition("| launches (v5e, H100s) |")[2].partition("\n\n")[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]


@pytest.mark.parametrize(
    ("name", "platform"),
    [
        pytest.param("v5e:2x4", "tpu", id="v5e:2x4", marks=pytest.mark.targets("tpu")),
        pytest.param("h100:8", "gpu", id="h100:8", marks=pytest.mark.targets("gpu")),
    ],
)
def test_products_are_covered_by_what_the_schedule_hides_under_them(name, platform):
    """Of FSDP; products at both ends of the step have nothing to cover."""
    worker = Path(__file__).with_name("compile_overlap.py")
    layers, scan, small = compiled_elsewhere(worker, name)
    column = 1 if platform == "tpu" else 2
    for row, what in (
        (layers, "6 in a row, 1024"),
        (scan, "four iterations"),
        (small, "as chosen"),
    ):
        (cells,) = (cells for cells in rows_of_the_page() if what in cells[0])
        assert cells[column] == f"{row['covered']} of {row['matmuls']}"
        assert cells[3].split(", ")[column - 1] == str(row["launches"])
    for found in (layers, scan):
        assert found["hidden"] > 0.2
        assert found["covered"] >= found["matmuls"] / 2
        assert found["in flight"] >= (2 if platform == "tpu" else 1)
    assert scan["covered"] >= 2 / 3 * scan["matmuls"]
    # Small layers in buckets: fewer collectives, of which some are still beside products.
    assert small["launches"] < 0.4 * (7 if platform == "tpu" else 1) * small["sent"]
    assert small["covered"] >= small["matmuls"] / 4
    if platform == "gpu":  # TPUs keep much of it in their other memory
        for found in (layers, scan):
            assert abs(found["temporaries"] / found["predicted"] - 1) < 0.1


@pytest.mark.parametrize(
    ("name", "platform"),
    [
        pytest.param("v5e:2x4", "tpu", id="v5e:2x4", marks=pytest.mark.targets("tpu")),
        pytest.param("h100:8", "gpu", id="h100:8", marks=pytest.mark.targets("gpu")),
    ],
)
def test_what_is_offloaded_is_on_the_host(name, platform):
    """Its bytes are the plan's, and those that stay on the device what the plan counts there."""
    rows = compiled_elsewhere(Path(__file__).with_name("compile_offload.py"), name)
    assert len(rows) == 4
    for row in rows:
        assert row["host"] > 0
        if platform == "tpu" and row["step"] == "layers":
            assert "outside of scans" in row["refused"]
            assert len(row["refused"]) <= 300
            continue
        assert row["compiled host"] == row["host"]
        assert row["in the program"] > 0
        assert row["compiled"] <= 1.15 * row["predicted"]
        assert row["compiled"] < 0.7 * row["without"]
