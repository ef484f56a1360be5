"""`cdcctl init`: check the node, read the seed, create the state folder."""

import click

from tidemark_ctl.loading import deferred
from tidemark_ctl.options import LAKE, PATH, config_option, state_option


@click.command()
@state_option
@config_option
@click.option("--dsn", help="The node, as a libpq connection string. Put a password into PGPASSFILE.")
@click.option("--name", help="Name of the capture (default: main); captures of one cluster need different names.")
@click.option(
    "--database", "databases", multiple=True, help="Capture these databases (default: the database of the DSN)."
)
@click.option("--table", "tables", multiple=True, help="Capture these tables: schema.table with * and ?.")
@click.option(
    "--archive", type=PATH, help="Folder of archived WAL: a new spool, or an archive that another program fills."
)
@click.option("--from-spool", type=PATH, help="Rebuild a lost state from this spool.")
@click.option("--lake", type=LAKE, help="With --from-spool: the lake that contains the tables.")
@click.option("--from-backup", type=PATH, help="Read the catalogs from this base backup and the WAL in --archive.")
@deferred("init.init")
def init() -> None:
    """Create the state of a capture from --config, or from --dsn, which also writes a configuration.

    Checks the settings of the node, and reads its catalogs by plain SELECTs and the WAL since its last checkpoint. A
    second run changes nothing. The sidecar copies the existing rows.

    With --from-spool, catalogs and positions come from the copies that the archiver wrote into the spool. The node is
    not queried, except with standby.follow, to find out if it is a standby. Tables that are not completely in LAKE
    are copied again; without --lake, all tables are.

    With --from-backup, the node is not queried either: the state begins at the end of the backup. `cdcctl decode` needs
    nothing else; give --config if daemons will use the state.
    """
