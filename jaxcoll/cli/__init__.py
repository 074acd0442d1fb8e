"""The command line: ``jaxcoll COMMAND``, or ``python -m jaxcoll COMMAND``.

This module lists the commands by name; each is loaded when it is called. It also turns their errors
into one line and an exit code: 0 (done), 1 (a check failed) or 2 (bad usage or input). A fault of
the library itself is shown with its traceback, with exit code 70. ``--help`` and completion load
only the command that they are for, and no command loads NumPy before its arguments are read, so a
wrong option is refused at once.

- ``quantities``: "256KiB", "0.5us" and "50GB/s", tables and JSON;
- ``failing``: ``--without``, ``--slow`` and ``--in-network``;
- ``networks``: "torus:4x4" and the other names;
- ``files``: schedules and networks in every format;
- ``objects``: the user's own functions and link models;
- ``schedules``, ``exploring``, ``comparing``, ``explaining``, ``tuning``, ``measuring``,
  ``contests``, ``compiling``, ``emulating``, ``probing``, ``doctor``: the commands.

It uses click, which is pure Python without dependencies (typer adds rich, shellingham and itself)
and completes names and files for bash, zsh and fish.
"""

from __future__ import annotations

import concurrent.futures
import functools
import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Sequence

import click

from jaxcoll.cli.quantities import Group, one_line
from jaxcoll.cli.words import in_options
from jaxcoll.errors import AssumptionWarning, JaxcollError, SearchWarning, TableWarning
from jaxcoll.prove.answers import NotProved, NotRead

# Name -> the module that defines the command, and its line in the list of commands. ``plan``
# belongs to a package above this one, so it is found by name, as a plugin would be.
COMMANDS = {
    "synth": ("jaxcoll.cli.schedules", "Make a schedule: the fastest found, or one by name."),
    "verify": ("jaxcoll.cli.schedules", "Prove a schedule, or name rank, chunk and step."),
    "prove": ("jaxcoll.cli.schedules", "Prove a file by a second, independent checker."),
    "simulate": ("jaxcoll.cli.schedules", "Time a schedule link by link."),
    "convert": ("jaxcoll.cli.schedules", "Write a network or schedule in another format."),
    "compare": ("jaxcoll.cli.comparing", "All synthesizers on my network, in percent of a bound."),
    "bound": ("jaxcoll.cli.comparing", "The time that no schedule can beat, and why."),
    "find": ("jaxcoll.cli.exploring", "Networks of a size and degree with the best schedules."),
    "show": ("jaxcoll.cli.exploring", "A network or schedule as text, or drawn to a file."),
    "tune": ("jaxcoll.cli.tuning", "Measure collectives on these devices; read tables."),
    "calibrate": ("jaxcoll.cli.tuning", "Fit links to times that nccl-tests measured."),
    "measured": ("jaxcoll.cli.measuring", "Published times of real machines, with their sources."),
    "explain": ("jaxcoll.cli.explaining", "Will schedules pay here? Inside JAX, and exported."),
    "expect": ("jaxcoll.cli.measuring", "What my machine should reach, and what my log says."),
    "plan": ("tensorstate.command_line", "Choose the placements of a training step's tensors."),
    "targets": ("jaxcoll.cli.compiling", "Compile my function for a slice that is not here."),
    "emulate": ("jaxcoll.cli.emulating", "Run a program on a network of cables on this machine."),
    "probe": ("jaxcoll.cli.probing", "Measure the network between the processes of a job."),
    "doctor": ("jaxcoll.cli.doctor", "Devices, their guessed network, versions, missing packages."),
    "completion": ("jaxcoll.cli.doctor", "Print the script for completion in a shell."),
}

_COMPLETE = "_JAXCOLL_COMPLETE"  # the variable that shells set to ask for completions
INTERRUPTED = 130  # the exit code that shells report for a command stopped by Ctrl-C
CLOSED_PIPE = 141  # the exit code that shells report if the reader of a pipe has gone
FAULT = 70  # an error of the program itself (EX_SOFTWARE in sysexits.h)


class _Application(Group):
    """A group whose commands are imported when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from jaxcoll import __version__

        click.echo(f"jaxcoll {__version__}")
        ctx.exit()


@click.group(
    cls=_Application,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=False,
    invoke_without_command=True,
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version,
    help="Print the version.",
)  # fmt: skip
@click.pass_context
def application(ctx: click.Context) -> None:
    """Schedules of collectives for a network, such as torus:4x4. All commands take --json."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. Errors that users can fix are one line on stderr."""
    warnings.showwarning = functools.partial(_show_warning, set())
    # Under ``python -W error`` these warnings would end as faults; they stay lines on stderr.
    for category in (AssumptionWarning, SearchWarning, TableWarning):
        warnings.simplefilter("default", category)
    given = sys.argv[1:] if arguments is None else list(arguments)
    if _COMPLETE in os.environ:
        from click.shell_completion import shell_complete

        return shell_complete(application, {}, "jaxcoll", _COMPLETE, os.environ[_COMPLETE])
    if any("\0" in argument for argument in given):
        return _failed("an argument holds a NUL character, which no name has; leave it out", 2)
    try:
        # ``application.main`` would print a line of its own for Ctrl-C and exit with 1.
        with application.make_context("jaxcoll", given) as context:
            code = application.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        return done.exit_code
    except BrokenPipeError:
        # Otherwise Python would complain when it flushes the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except (KeyboardInterrupt, click.Abort):
        return _failed("interrupted", INTERRUPTED)
    except click.UsageError as error:
        return _failed(_usage(error), 2)
    except click.ClickException as error:
        return _failed(error.format_message(), 2)
    except ModuleNotFoundError as error:
        return _failed(_missing(error), 2)
    except concurrent.futures.BrokenExecutor as error:
        return _failed(f"{error}; type --workers 1 to see why", 2)
    except MemoryError:
        return _failed("not enough memory for this size; type a smaller one", 2)
    except OSError as error:
        named = error.strerror and error.filename is not None
        return _failed(f"{error.filename}: {error.strerror}" if named else str(error), 2)
    # Only the library's own refusals: any other ValueError is a fault of the library, and as one
    # line it would look like the user's.
    except (JaxcollError, NotRead, NotProved) as error:
        return _failed(in_options(str(error), _command(given)), 2)
    except Exception as error:
        traceback.print_exc()
        what = f"{type(error).__name__}: {one_line(error)}"
        report = "unless a function of yours raises it, this is a fault of jaxcoll; please report"
        return _failed(f"{what}; {report} the lines above", FAULT)
    return code if isinstance(code, int) else 0


def _failed(message: str, code: int) -> int:
    print(f"jaxcoll: {one_line(message)}", file=sys.stderr)
    return code


# Options of other tools -> the option that serves the same purpose here.
_ELSEWHERE = {
    "--algo": "--synthesizer", "--algorithm": "--synthesizer", "--bw": "--bandwidth",
    "--bytes": "--size", "--latency": "--alpha", "--nbytes": "--size", "--out": "--output",
    "--sizes": "--size", "--to": "--format", "--topology": "--network", "--type": "--format",
}  # fmt: skip


def _command(given: Sequence[str]) -> click.Command | None:
    """The command, or the command of a group, that the arguments call."""
    command: click.Command | None = application
    for word in given:
        if not isinstance(command, click.Group):
            break
        command = command.get_command(click.Context(command), word)
    return command


def _options(command: click.Command) -> set[str]:
    return {text for param in command.params for text in param.opts if text.startswith("--")}


def _usage(error: click.UsageError) -> str:
    message = one_line(error.format_message()).rstrip(".")
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        # Options of other tools are not similar in spelling to those here.
        ours = _ELSEWHERE.get(error.option_name)
        if ours in _options(error.ctx.command):
            message = f"No such option: {error.option_name}; did you mean {ours}?"
    path = error.ctx.command_path if error.ctx is not None else ""
    return (
        f"{message} (jaxcoll --help)" if path in ("", "jaxcoll") else f"{message} ({path} --help)"
    )


# Packages that commands need and the library does not -> the extra or command that installs them.
_INSTALLS = {
    "jax": "pip install jax",
    "jaxlib": "pip install jax",
    "matplotlib": "pip install matplotlib",
    "optax": "pip install optax",
    "sklearn": "pip install scikit-learn",
}


def _missing(error: ModuleNotFoundError) -> str:
    package = (error.name or "").partition(".")[0]
    if package not in _INSTALLS:
        return one_line(error)
    return f"this needs the package {package}; type: {_INSTALLS[package]}"


def _show_warning(
    told: set[str], message, category, filename, lineno, file=None, line=None
) -> None:
    """Print each text once: several parts of the library may warn of the same link."""
    context = click.get_current_context(silent=True)
    text = one_line(in_options(str(message), None if context is None else context.command))
    if text not in told:
        told.add(text)
        print(f"jaxcoll: warning: {text}", file=sys.stderr)
