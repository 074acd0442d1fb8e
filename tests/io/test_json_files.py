"""JSON files: written whole or not at all, named in errors, refused when too large."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given, settings

import jaxcoll.io.files
from jaxcoll.errors import FormatError, TopologyError
from jaxcoll.io import dumps, load, save
from jaxcoll.topologies import ring
from tests.io.json_objects import OBJECTS, change


@settings(max_examples=15)
@given(obj=OBJECTS)
def test_files_there_and_back(tmp_path_factory, obj):
    path = tmp_path_factory.mktemp("json") / "x.json"
    save(path, obj)
    assert path.read_bytes() == dumps(obj).encode()
    assert load(path) == load(str(path)) == obj
    save(path, ring(3))
    assert load(path) == ring(3)
    assert os.listdir(path.parent) == ["x.json"]


class Stop(BaseException):
    """As an interrupt is."""


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt(), Stop()])
def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch, call, error):
    path = tmp_path / "x.json"
    save(path, ring(3))

    def fail(*_):
        raise error

    monkeypatch.setattr(jaxcoll.io.files.os, call, fail)
    with pytest.raises(type(error)):
        save(path, ring(4))
    with pytest.raises(type(error)):
        save(tmp_path / "new.json", ring(4))
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["x.json"]
    assert load(path) == ring(3)


def test_what_cannot_be_written_touches_no_file(tmp_path):
    with pytest.raises(FormatError, match=r"expected a Topology, .*Schedule, got dict"):
        save(tmp_path / "x.json", {})  # type: ignore[arg-type]
    assert not os.listdir(tmp_path)
    with pytest.raises(FileNotFoundError):
        save(tmp_path / "nowhere" / "x.json", ring(3))


def test_new_files_have_the_usual_rights(tmp_path):
    (tmp_path / "other").touch()
    save(tmp_path / "x.json", ring(3))
    assert (tmp_path / "x.json").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_large_files_are_refused_unread(tmp_path):
    path = tmp_path / "x.json"
    save(path, ring(3))
    size = path.stat().st_size
    assert load(path, max_bytes=size) == ring(3)
    with pytest.raises(FormatError, match=rf"x\.json has more than the {size - 1} bytes"):
        load(path, max_bytes=size - 1)


def test_errors_name_the_file(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(change(ring(3), src=[0, 0]))
    with pytest.raises(FormatError, match=re.escape(str(path))) as caught:
        load(path)
    assert isinstance(caught.value.__cause__, TopologyError)
    path.write_bytes(b'{"format": "\xff"}')
    with pytest.raises(FormatError, match=r"x\.json is not UTF-8"):
        load(path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.json")
