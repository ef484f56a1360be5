"""`cdcctl lake check`: checks the tables of a lake."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import config_option, json_option, lake_option


@click.command()
@lake_option
@config_option
@click.option("--read-files", is_flag=True, help="Read every data file, instead of comparing sizes only.")
@json_option
@deferred("lake_report.check")
def check() -> None:
    """Check versions, files and positions of every table of a lake.

    Compares the commits and files of each Delta table with `_positions`. A running pipeline is not affected. The exit
    code is 1 if a fault was found.
    """
