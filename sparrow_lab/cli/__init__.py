"""The command line: `sparrow-lab <command>`.

`main` is the only place where errors become exit codes: 0 for success, 2 for a
mistake that the user can put right (one line on stderr, no traceback; a file that the
system will not let us read or write is one), 130 for Ctrl-C. Any other exception is a bug
and keeps its traceback.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer

from sparrow_lab.cli.commands import LazyGroup
from sparrow_lab.cli.values import value_problem
from sparrow_lab.errors import UserError

__all__ = ["app", "main"]

# The public base of typer's usage errors moved between its releases; this finds it in all.
_UsageError: Any = typer.BadParameter.__mro__[1]
_ClickError: Any = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="sparrow-lab",
    cls=LazyGroup,
    help=(
        "Find how sparse the rollouts of your RL run may be: "
        "sweeps over tau, page size and model, per-token acceptance, cost and Pareto front."
    ),
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(installed("sparrow-lab"))
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


_THE_SYSTEMS = {
    errno.EACCES, errno.EDQUOT, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOSPC,
    errno.ENOTDIR, errno.EPERM, errno.EROFS,
}  # fmt: skip
"""What a system answers about a file that is the user's to put right."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; `arguments` default to those of the process."""
    command: Any = typer.main.get_command(app)
    try:
        result = command.main(
            args=None if arguments is None else list(arguments),
            prog_name="sparrow-lab",
            standalone_mode=False,
        )
        sys.stdout.flush()
        sys.exit(result if isinstance(result, int) else 0)
    except UserError as error:
        _fail(error.message, error.where)
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(error.format_message())
            sys.exit(2)
        path = error.ctx.command_path if error.ctx is not None else "sparrow-lab"
        said = value_problem(error) or error.format_message().rstrip(".")
        _fail(f"{said}; see '{path} --help'", path)
    except _ClickError as error:
        _fail(error.format_message(), None)
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has gone: leave quietly, as other tools do.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.errno not in _THE_SYSTEMS or error.filename is None:
            raise
        _fail(error.strerror or str(error), str(error.filename))


def _fail(message: str, where: str | None) -> NoReturn:
    """Print one line on stderr and exit with 2."""
    text = f"{where}: {message}" if where else message
    print("error: " + " ".join(text.splitlines()), file=sys.stderr)
    sys.exit(2)
