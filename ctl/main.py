"""The entry of `cdcctl`: collects the commands, and turns an error into a message, a hint and an exit code (I40).

No command catches an error of ours to print it: that happens here, in one place. What a command prints on standard
output is its result; messages, progress and errors go to standard error.
"""

import sys

import click

from ctl.commands.decode import decode
from ctl.commands.init import init
from ctl.commands.reader import reader
from ctl.commands.run import run
from ctl.commands.spark import spark
from ctl.commands.status import status
from ctl.commands.tail import tail
from tidemark.model.errors import ExitCode, TidemarkError

COMMANDS: dict[str, click.Command] = {
    "decode": decode,
    "init": init,
    "reader": reader,
    "run": run,
    "spark": spark,
    "status": status,
    "tail": tail,
}


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, commands=COMMANDS)
@click.version_option(package_name="tidemark", prog_name="cdcctl")
def cdcctl() -> None:
    """Realtime change data capture for PostgreSQL that never holds back the database."""


def main() -> None:
    """Run `cdcctl` and exit: 0, or the code of the error's class."""
    try:
        cdcctl.main(standalone_mode=False)
    except TidemarkError as error:
        click.echo(f"cdcctl: {error}", err=True)
        if error.hint:
            click.echo(f"  hint: {error.hint}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(ExitCode.CONFIG)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)  # 128 + SIGINT, as a shell says it
    except BrokenPipeError:
        # The reader of our output has gone (`cdcctl tail … | head`): nothing is left to say, and nobody to say it to.
        sys.stderr.close()
        sys.exit(ExitCode.SUCCESS)
