"""Finding, listing and starting benchmarks."""

from __future__ import annotations

import sys
import textwrap

import pytest

from experiments import benchmarks
from experiments.benchmarks import __main__ as command


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The package of benchmarks, with one benchmark and one helper in place of its own."""
    source = '''
        """Says its arguments.

        More about it.
        """

        def main(argv):
            print("said", *argv)
            return 3 if "fail" in argv else None

        def loud_echo(argv):
            """Says them loudly."""
            print("SAID", *argv)

        def _echo(argv):
            """No benchmark, like every function that is not public or takes more."""

        def both(argv, more):
            """Neither is this."""
    '''
    (tmp_path / "echo.py").write_text(textwrap.dedent(source))
    (tmp_path / "helper.py").write_text('"""Has no main."""\n')
    monkeypatch.setattr(benchmarks, "__path__", [str(tmp_path)])
    yield
    sys.modules.pop("experiments.benchmarks.echo", None)


def test_only_public_functions_of_argv_are_benchmarks(folder):
    assert command.find() == {"echo": "Says its arguments.", "loud_echo": "Says them loudly."}
    assert "experiments.benchmarks.echo" not in sys.modules


def test_every_benchmark_of_the_project_says_what_it_measures():
    found = command.find()
    assert not {"report", "__main__"} & set(found)
    assert all(found.values())


def test_no_argument_lists_them(folder, capsys):
    assert command.main([]) == 0
    printed = capsys.readouterr().out
    assert "echo" in printed
    assert "Says its arguments." in printed
    assert "helper" not in printed


def test_a_benchmark_gets_the_rest_of_the_arguments(folder, capsys):
    assert command.main(["echo", "1", "--two"]) == 0
    assert capsys.readouterr().out == "said 1 --two\n"
    assert command.main(["echo", "fail"]) == 3
    assert command.main(["loud-echo", "1"]) == 0
    assert capsys.readouterr().out.endswith("SAID 1\n")


def test_an_unknown_name_is_answered_with_the_names(folder, capsys):
    assert command.main(["ecko"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "'ecko'" in captured.err
    assert "echo" in captured.err
