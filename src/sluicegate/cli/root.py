"""The command group and how every failure of a command becomes one clear line and an exit status."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import click
from click.core import ParameterSource

from sluicegate.cli import analytics, control, decide, replay, rules, serve, sim, suggest, top
from sluicegate.cli.options import Group
from sluicegate.cli.remote.commands import ON_RULES, REMOTE
from sluicegate.errors import SluicegateError
from sluicegate.rules.problems import RulesInvalid

__all__ = ["root", "run"]

# What the system says where a file takes no more; every file that is written besides the output has its own message.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})

# What it says where it has no descriptor, process or memory left.
_NO_MEANS = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})

LATER = frozenset({"doctor"})


@click.group(cls=Group, later=LATER, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version("sluicegate"), message="sluicegate %(version)s")
def root() -> None:
    """Decide allow or refuse before the backend is touched.

    Exit status: 0 done; 1 the answer is no (refused, invalid, differs); 2 bad usage or configuration.
    """


for _command in (
    serve.up, serve.serve, serve.gateway, rules.rules, decide.check, decide.explain,
    replay.replay, top.top, suggest.suggest, control.control, sim.sim, analytics.analytics, *REMOTE,
):  # fmt: skip
    root.add_command(_command)
for _command in ON_RULES:
    rules.rules.add_command(_command)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and give its exit status; everything that goes wrong on purpose is said in plain words."""
    _open_standard_streams()
    try:
        result: Any = root.main(
            args=None if arguments is None else list(arguments), prog_name="sluicegate", standalone_mode=False
        )
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return 2
    except click.ClickException as error:
        print(_describe(error), file=sys.stderr)
        return 2
    except click.Abort:
        return 130
    except RulesInvalid as error:
        print("\n".join(str(problem) for problem in error.problems), file=sys.stderr)
        return 2
    except SluicegateError as error:
        print(f"sluicegate: {error}", file=sys.stderr)
        _give_up_output()
        return 2
    except BrokenPipeError:
        # The reader of our output has gone, which is no error: `sluicegate rules bounds FILE | head`.
        _give_up_output()
        return 0
    except OSError as error:
        if error.errno not in _NO_ROOM | _NO_MEANS:
            raise
        what = "write the output" if error.errno in _NO_ROOM else "go on"
        print(f"sluicegate: cannot {what}: {error.strerror}", file=sys.stderr)
        _give_up_output()
        return 2
    return result if isinstance(result, int) else 0


def _give_up_output() -> None:
    """Let what could not be printed go, or Python would try again at its end and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_standard_streams() -> None:
    """Where standard input, output or error is closed, make it the null device.

    The next socket would otherwise take its number, and what is printed would go to a client.
    """
    for descriptor, mode in enumerate(("r", "w", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
            # The number it was opened under may be this one already, and then dup2 leaves it closed for child processes.
            os.set_inheritable(descriptor, True)
            stream = os.fdopen(descriptor, mode, closefd=False)
            setattr(sys, ("stdin", "stdout", "stderr")[descriptor], stream)


def _describe(error: click.ClickException) -> str:
    message = " ".join(error.format_message().split()).rstrip(".")
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    if ctx is None:
        return f"sluicegate: {message}"
    if isinstance(error, click.BadParameter) and error.param is not None and error.param.name is not None:
        source = ctx.get_parameter_source(error.param.name)
        if source is ParameterSource.DEFAULT_MAP:
            message += f" (from {ctx.meta.get('sluicegate.config')})"
        elif source is ParameterSource.ENVIRONMENT:
            message += f" (from the environment variable {error.param.envvar})"
    return f"{ctx.command_path}: {message}; see '{ctx.command_path} --help'"
