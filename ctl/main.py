"""The entry of `cdcctl`: collects the commands, and turns an error into a message, a hint and an exit code (I40).

No command catches an error of ours to print it: that happens here, in one place. What a command prints on standard
output is its result; messages, progress and errors go to standard error.
"""

import gc
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import click

from tidemark.model.errors import ExitCode, InternalError, TidemarkError

COMMANDS = (
    "archive",
    "check",
    "decode",
    "init",
    "reader",
    "realtime",
    "rewind",
    "run",
    "spark",
    "status",
    "table",
    "tail",
)
INTERRUPTED = 130  # 128 + SIGINT, as a shell says it
BLAS_THREADS = "OPENBLAS_NUM_THREADS"


class _ReaderGone(Exception):
    """Nobody reads our output any more (`cdcctl tail … | head`)."""


class _Commands(click.Group):
    """Each command is loaded when it is asked for: most of what one takes is the loading of what it needs.

    NB: click ends a program whose output nobody reads with code 1, before we see it.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, from the module of its name."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        with _loading():
            found = getattr(import_module(f"ctl.commands.{cmd_name}"), cmd_name)
        assert isinstance(found, click.Command), cmd_name
        return found

    def invoke(self, ctx: click.Context) -> object:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _ReaderGone from None


@contextmanager
def _loading() -> Iterator[None]:
    """Load modules without what costs more than it brings: nothing of them is garbage, then or later.

    pyarrow loads numpy, whose library starts a thread a processor for algebra, which we have none of.
    """
    is_ours = BLAS_THREADS not in os.environ
    if is_ours:
        os.environ[BLAS_THREADS] = "1"
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()
        if is_ours:
            del os.environ[BLAS_THREADS]


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tidemark", prog_name="cdcctl")
def cdcctl() -> None:
    """Realtime change data capture for PostgreSQL that never holds back the database."""


def main() -> None:
    """Run `cdcctl` and exit: 0, or the code of the error's class."""
    try:
        cdcctl.main(standalone_mode=False)
    except TidemarkError as error:
        _end(error.exit_code, str(error), error.hint)
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
        where = f"{error.filename}: " if error.filename else ""
        _end(ExitCode.UNEXPECTED, f"{where}{error.strerror or error}", "see permissions and free space, also of output")
    except Exception:  # noqa: BLE001 - the one place: whatever it is, it is a bug
        traceback.print_exc()
        _end(ExitCode.INTERNAL, "an error of its own, see above", InternalError.hint)


def _end(code: ExitCode, message: str, hint: str) -> None:
    click.echo(f"cdcctl: {message}", err=True)
    if hint:
        click.echo(f"  hint: {hint}", err=True)
    sys.exit(code)


def _drop_output() -> None:
    """Let what is still buffered for standard output go nowhere: at exit it would fail once more, with code 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
