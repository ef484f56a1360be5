"""A capture with a server of its own: folders, sidecar, archiver, pipeline, and the clients of the load."""

from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from scripts.demo_run import workload as shop
from scripts.demo_run.archiving import archive_line
from scripts.demo_run.processes import CTL, DemoProcess, run
from scripts.demo_run.server import DemoServer

ROLE = "cdc"
SPARK_STARTED = '"query starts"'  # an event of Spark's log
SPARK_S_MAX = 240.0
GRANTS = (
    f"CREATE ROLE {ROLE} LOGIN REPLICATION",
    f"GRANT USAGE ON SCHEMA app TO {ROLE}",
    f"GRANT SELECT ON ALL TABLES IN SCHEMA app TO {ROLE}",  # for the first copy
    f"GRANT EXECUTE ON FUNCTION pg_switch_wal() TO {ROLE}",  # so that partly filled segments are archived soon
)


@dataclass(kw_only=True)
class OwnCapture:
    """The processes and their folders."""

    folder: Path
    server: DemoServer
    pipeline_options: tuple[str, ...] = ()
    work: shop.DemoClients = field(init=False)
    sidecar: DemoProcess = field(init=False)
    archiver: DemoProcess = field(init=False)
    pipeline: DemoProcess = field(init=False)

    def __post_init__(self) -> None:
        self.work = shop.DemoClients(self.server.dsn())
        state = ("--state", str(self.state))
        self.sidecar = DemoProcess("sidecar", ("run", "sidecar", *state), self.folder / "sidecar.log")
        self.archiver = DemoProcess("archiver", ("run", "archiver", *state), self.folder / "archiver.log")
        words = ("spark", "run", *state, "--lake", str(self.lake), "--master", "local[2]", *self.pipeline_options)
        self.pipeline = DemoProcess("spark", words, self.folder / "spark.log")

    @property
    def state(self) -> Path:
        """The state folder."""
        return self.folder / "state"

    @property
    def spool(self) -> Path:
        """The folder to which the server archives."""
        return self.folder / "spool"

    @property
    def lake(self) -> Path:
        """The folder of the tables."""
        return self.folder / "lake"

    @property
    def config(self) -> Path:
        """The configuration of the capture."""
        return self.folder / "tidemark.toml"

    @property
    def processes(self) -> tuple[DemoProcess, ...]:
        """All processes of Tidemark."""
        return self.sidecar, self.archiver, self.pipeline

    def create_database(self) -> int:
        """Create a user's environment: a database with rows, and a role for the capture; return the number of rows."""
        rows = shop.create(self.server.dsn())
        with psycopg.connect(self.server.dsn(), autocommit=True) as connection:
            for statement in GRANTS:
                connection.execute(statement.encode())
        return rows

    def create_state(self) -> None:
        """Create the state from `config` as a user would, and make the server archive by the line that is printed."""
        reported = run(CTL, "init", "--config", str(self.config), "--state", str(self.state)).stderr
        self.server.configure(archive_line(reported))
