"""The entry point of `cdcctl`: collects the commands, and turns an error into a message, a hint and an exit code (I40).

No command catches one of our errors to print it: that happens only here. A command prints its result on standard
output; messages, progress and errors go to standard error.
"""

import os
import sys
import traceback

import click

from tidemark.model.errors import ExitCode, InternalError, TidemarkError
from tidemark_ctl.failure_text import failure_of
from tidemark_ctl.loading import Entry, LazyGroup

COMMANDS = {
    "archive": Entry("archive", "Show the archive, and repair it."),
    "check": Entry(
        "check", "Write a marker into the WAL and follow it through capture, archive, consumer and readers."
    ),
    "decode": Entry(
        "decode", "Print the changes in archived WAL, decoded with the catalog history of the state folder."
    ),
    "init": Entry(
        "init", "Create the state of a capture from --config, or from --dsn, which also writes a configuration."
    ),
    "lake": Entry(
        "lake", "Show the tables of a lake, check them, remove dropped ones, and adopt a lake that was restored."
    ),
    "parked": Entry("parked", "List, retry and drop changes that a consumer could not handle."),
    "reader": Entry("reader", "List, drop and resume the readers of the outbox."),
    "realtime": Entry("realtime", "Switch between realtime and the archive, and show which process delivers."),
    "replay": Entry("replay", "Write the rows that a table had at one moment to a Delta table."),
    "rewind": Entry(
        "rewind", "Go back to the fork at which the node left the delivered branch, and continue on its timeline."
    ),
    "run": Entry("run", "Run a daemon in the foreground."),
    "spark": Entry("spark", "Write changes to tables with Spark."),
    "status": Entry(
        "status", "Show mode, positions, outbox, readers, first copies and archive, read from the folders only."
    ),
    "table": Entry("table", "Add, copy again or resume single tables."),
    "tail": Entry("tail", "Print the changes of the node at DSN as they commit, until interrupted."),
}
INTERRUPTED = 130  # 128 + SIGINT, a shell's exit code


class _ReaderGone(Exception):
    """The reader of our output has closed it (`cdcctl tail … | head`)."""


class _Commands(LazyGroup):
    """All commands.

    NB: at a closed output, click itself would exit with code 1 before the handler here.
    """

    def invoke(self, ctx: click.Context) -> object:
        """Run the requested command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _ReaderGone from None


@click.group(cls=_Commands, entries=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tidemark", prog_name="cdcctl")
def cdcctl() -> None:
    """Realtime change data capture for PostgreSQL that never holds back the database."""


def main() -> None:
    """Run `cdcctl` and exit: 0, or the code of the error's class."""
    try:
        cdcctl.main(standalone_mode=False)
    except TidemarkError as error:
        _end(*failure_of(error))
    except click.ClickException as error:
        error.show()
        sys.exit(ExitCode.CONFIG)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except _ReaderGone:
        _drop_output()
        sys.exit(ExitCode.SUCCESS)
    except OSError as error:
        _drop_output()
        _end(*failure_of(error))
    except Exception:  # noqa: BLE001 - the one place: whatever it is, it is a bug
        traceback.print_exc()
        _end(ExitCode.INTERNAL, "internal error; see the traceback above", InternalError.hint)


def _end(code: ExitCode, message: str, hint: str) -> None:
    click.echo(f"cdcctl: {message}", err=True)
    if hint:
        click.echo(f"  hint: {hint}", err=True)
    sys.exit(code)


def _drop_output() -> None:
    """Discard the buffered standard output: writing it at exit would fail again, with code 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
