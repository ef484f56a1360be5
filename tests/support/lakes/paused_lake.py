"""A lake that is fed from a real outbox as by the pipeline, without Spark, and whose folders can refuse writes."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.lakes.lakes import IDENTITY, folder_of
from tests.support.lakes.scripted_table import DATABASE, ScriptedTable
from tests.support.servers.small_disk import read_only
from tests.support.workloads.feeder import feed, make_state
from tidemark.engine.selection import Selection
from tidemark.io.process.lake_config import DEFAULT_LAKE
from tidemark.io.readers.accepted_breaks import accept_breaks, accepted_breaks, log_key
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.readers.resume_requests import request_resume
from tidemark.io.readers.state_capture import StateCapture
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeGroup
from tidemark.model.lsn import Oid
from tidemark.model.position import Sequence
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.positions.table_position import TablePosition
from tidemark.pipeline.landing.behind.paused_tables import PausedTables
from tidemark.pipeline.landing.portions import ITEMS
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.lake_batch import LakeBatch, LakeItem
from tidemark.pipeline.sinks.targets.slow_writes import SlowWrites

READER = "spark"
ALL = ("log", "replica")


class ScriptedTimes(SlowWrites):
    """The times of writes: a minute for those of one table, none for others."""

    def __init__(self) -> None:
        super().__init__(30.0)
        self.slow = ""

    def record(self, uri: str, seconds: float) -> None:
        """Record a scripted time."""
        del seconds
        super().record(uri, 60.0 if self.slow and uri.startswith(f"{self.slow}/") else 0.0)


class PausedLake:
    """A state folder and a lake below `root`."""

    config = DEFAULT_LAKE

    def __init__(self, root: Path, *, outbox: str = "0a0b", bytes_max: int = 1 << 22) -> None:
        self.root = root
        self.bytes_max = bytes_max
        self._slow_writes = ScriptedTimes()
        self.lake = root / "lake"
        self.lake.mkdir()
        self.use_outbox(outbox)

    def use_outbox(self, name: str) -> None:
        """Continue with a new state folder."""
        self.state = self.root / f"state {name}"
        make_state(self.state, name)
        with OutboxReader.open(StateFolder(self.state)) as outbox:
            outbox.register(READER)

    def feed(self, groups: Iterable[ChangeGroup]) -> None:
        """Deliver `groups` to the outbox."""
        feed(self.state, groups)

    def open(self) -> Lake:
        """Open the lake, as a pipeline that starts."""

        def accepted() -> dict[str, str]:
            return dict(accepted_breaks(self.state, READER))

        return Lake(
            str(self.lake),
            IDENTITY,
            shape_of,
            constants_of,
            accepted=accepted,
            config=self.config,
            slow_writes=self._slow_writes,
        )

    def accept_break(self, table: ScriptedTable) -> None:
        """Accept the present break of the table's log."""
        fault = self.position(table).log.fault
        assert fault is not None
        accept_breaks(self.state, READER, {log_key(DATABASE, table.oid): str(fault.position)})

    def land(self) -> None:
        """Write the new values of the outbox into the lake, as one batch."""
        with OutboxReader.open(StateFolder(self.state)) as outbox:
            lake, paused = self.open(), self._paused(outbox)
            applied = lake.positions.applied.sequence if lake.positions.outbox == outbox.outbox_id else Sequence(0)
            values = list(outbox.read(applied, outbox.head()))
            if not values:
                return
            items: list[LakeItem] = [
                (value.header.sequence, value.item()) for value in values if value.header.kind in ITEMS
            ]
            paused.give_up_oldest(lake)
            paused.resume_copied(lake, items)
            lake.apply(LakeBatch(outbox.outbox_id, outbox.head(), values[-1].header.pointer.position, items))
            outbox.confirm(READER, lake.contained, lake.contained)
            paused.close_old_requests(lake)

    def resume(self, oid: Oid) -> int:
        """Resume a table; return the number of slices until it is done."""
        request_resume(self.state, READER, log_key(DATABASE, oid))
        return self.slices()

    def slices(self) -> int:
        """Let the tables whose resumption was requested catch up; return the number of slices."""
        with OutboxReader.open(StateFolder(self.state)) as outbox:
            return self.continue_resume(outbox)

    def continue_resume(self, outbox: OutboxReader) -> int:
        """Let requested tables catch up, as a pipeline that starts; return the number of slices."""
        lake, paused, slices = self.open(), self._paused(outbox), 0
        while paused.resume(lake, lambda: None):
            slices += 1
        outbox.confirm(READER, lake.contained, lake.contained)
        return slices

    def position(self, table: ScriptedTable) -> TablePosition:
        """Return the recorded position of a table."""
        return self.open().positions.tables[DATABASE, table.oid]

    @property
    def held(self) -> Sequence:
        """The sequence up to which the outbox may be trimmed."""
        with OutboxReader.open(StateFolder(self.state)) as outbox:
            return outbox.register(READER).applied

    @property
    def head(self) -> Sequence:
        """The sequence of the newest value."""
        with OutboxReader.open(StateFolder(self.state)) as outbox:
            return outbox.head()

    @contextmanager
    def unwritable(self, table: ScriptedTable, parts: Iterable[str] = ALL) -> Iterator[None]:
        """Let the disk of a table's log or replica be read-only; if there is no table yet, it cannot be created."""
        folder = self.lake / folder_of(table.relation)
        if not folder.exists():
            folder.touch()
            yield
            folder.unlink()
            return
        with read_only(*(folder / name for name in parts)):
            yield

    @contextmanager
    def lagging(self, table: ScriptedTable) -> Iterator[None]:
        """Let the writes of a table's log and replica take longer than permitted, until it is paused."""
        self._slow_writes.slow = str(self.lake / folder_of(table.relation))
        yield
        self._slow_writes.slow = ""

    def _paused(self, outbox: OutboxReader) -> PausedTables:
        return PausedTables(outbox, StateCapture(outbox, Selection()), READER, self.bytes_max)
