"""Whole files: the old one survives errors, kills and other writers; links and rights stay."""

from __future__ import annotations

import os
import random
import signal
import stat
import time
from pathlib import Path

import pytest

from jaxcoll import compact
from jaxcoll.io.files import read_text, write_bytes, write_text
from tests.io.writer import content, is_whole, writing


@pytest.mark.parametrize("seed", range(4))
def test_a_kill_at_any_moment_leaves_a_whole_file(tmp_path, seed):
    path = tmp_path / "x"
    write_text(path, content(0))
    for _ in range(2):
        with writing(path) as child:
            time.sleep(random.Random(seed).uniform(0, 0.05))
            child.kill()
            child.join()
            assert child.exitcode == -signal.SIGKILL
        assert is_whole(read_text(path))
    write_text(path, "after")
    assert os.listdir(tmp_path) == ["x"]
    assert read_text(path) == "after"


def test_drafts_of_the_living_and_of_other_files_stay(tmp_path):
    made = [tmp_path / "x", tmp_path / "y"]
    held = [compact.locked_draft(path, lambda draft: os.open(draft, os.O_CREAT)) for path in made]
    write_text(tmp_path / "x", "one")
    assert {draft.name for draft, _ in held} < set(os.listdir(tmp_path))
    for _, file in held:
        os.close(file)  # as the system does when their process ends
    write_text(tmp_path / "x", "two")
    assert sorted(os.listdir(tmp_path)) == sorted(["x", held[1][0].name])


def test_several_writers_of_one_file(tmp_path):
    path = tmp_path / "x"
    with writing(path), writing(path):
        for _ in range(20):
            write_text(path, content(1))
            assert is_whole(read_text(path))


def test_a_draft_that_another_takes_for_abandoned_is_made_again(tmp_path):
    """Between the making and the lock of a draft another writer may remove it."""
    made: list[Path] = []

    def make(draft: Path) -> int:
        file = os.open(draft, os.O_CREAT | os.O_EXCL)
        made.append(draft)
        if len(made) < 3:
            draft.unlink()
        return file

    draft, file = compact.locked_draft(tmp_path / "x", make)
    os.close(file)
    assert draft == made[2]
    assert os.listdir(tmp_path) == [draft.name]


# ---------------------------------------------------------------------- rights, links, names


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o755])
def test_rights_are_kept(tmp_path, mode):
    path = tmp_path / "x"
    path.touch()
    path.chmod(mode)
    write_text(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_rights_of_new_files_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "x", "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_a_draft_of_a_private_file_is_private(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.touch(0o600)
    modes: list[int] = []

    def replace(draft, target):
        modes.append(stat.S_IMODE(os.stat(draft).st_mode))

    monkeypatch.setattr(os, "replace", replace)
    write_text(path, "secret")
    assert modes == [0o600]


def test_links_are_followed(tmp_path):
    (tmp_path / "folder").mkdir()
    target, link, far = tmp_path / "folder" / "x", tmp_path / "link", tmp_path / "far"
    link.symlink_to("folder/x")
    far.symlink_to(link)
    for text in ("made", "replaced"):  # a link to nothing is a place to write too
        write_text(far, text)
        assert far.is_symlink()
        assert link.is_symlink()
        assert target.read_text() == text
    assert os.listdir(tmp_path / "folder") == ["x"]
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    with pytest.raises(OSError, match="circle"):
        write_text(circle, "x")


@pytest.mark.parametrize("length", [1, 233, 234, 255])
def test_names_of_any_length(tmp_path, length):
    write_text(tmp_path / ("n" * length), "x")
    assert read_text(tmp_path / ("n" * length)) == "x"


@pytest.mark.parametrize(
    ("place", "kind"), [("nowhere/x", FileNotFoundError), ("file/x", NotADirectoryError)]
)
def test_errors_name_the_file_and_not_the_draft(tmp_path, place, kind):
    (tmp_path / "file").touch()
    with pytest.raises(kind) as caught:
        write_bytes(tmp_path / place, b"x")
    assert caught.value.filename == str(tmp_path / place)
    assert ".tmp" not in str(caught.value)
    with pytest.raises(OSError, match="too long") as caught_long:
        write_bytes(tmp_path / ("n" * 256), b"x")
    assert "jaxcoll-" not in str(caught_long.value)
    assert os.listdir(tmp_path) == ["file"]
