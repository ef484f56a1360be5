"""The port of executors, called in this process: each value of a run is a part, and tasks of a merge run here."""

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from tidemark.pipeline.lake.positions.table_position import TableId
from tidemark.pipeline.merge.merge_tasks import MergeTask
from tidemark.pipeline.merge.merging import MergedFiles
from tidemark.pipeline.sinks.executors.executor_files import ReplicaFiles, TargetFiles, WrittenFiles, joined
from tidemark.pipeline.sinks.executors.write_costs import RunWriter
from tidemark.pipeline.sinks.steps import PackedRun, run_of_rows


class WritersHere:
    """Writes each value of a run as a part of its own; counts the runs by kind of table, and those it refuses."""

    def __init__(self) -> None:
        self.written: list[type[TargetFiles]] = []
        self.merged: list[int] = []  # how many tasks each merge had
        self.refused = 0
        self.bytes_of = Counter[RunWriter]()
        self.rewritten = Counter[RunWriter]()
        self._changing: set[str] = set()

    def appends(self, byte_count: int) -> bool:
        return byte_count > 0

    def merges(self, _table: TableId, byte_count: int, _file_bytes: int | None = None) -> bool:
        return byte_count > 0

    def expects_merge(self, uri: str) -> bool:
        return uri in self._changing

    def expect_merge(self, uri: str) -> None:
        self._changing.add(uri)

    def record(self, writer: RunWriter, byte_count: int, seconds: float) -> None:
        assert seconds > 0
        self.bytes_of[writer] += byte_count

    def record_merge(
        self, writer: RunWriter, _table: TableId, byte_count: int, file_bytes: int, seconds: float
    ) -> None:
        assert byte_count > 0
        assert seconds > 0
        self.rewritten[writer] += file_bytes

    def write(self, target: TargetFiles, run: PackedRun) -> WrittenFiles | None:
        parts = [target.write(run_of_rows([value])) for value in run.batches]
        found = joined(parts)
        if found is None:
            self.refused += 1
            return None
        (self._changing.discard if found.only_adds else self._changing.add)(target.uri)
        if found.is_complete:
            self.written.append(type(target))
        return found

    def merge(self, target: ReplicaFiles, run: PackedRun, tasks: Sequence[MergeTask]) -> list[MergedFiles]:
        parts = [run_of_rows([value]).changes for value in run.batches]
        self.merged.append(len(tasks))
        found = []
        for task in tasks:
            changes = [parts[part].take(pa.array(rows)) for part, rows in sorted(task.rows.items())]
            found.append(target.merge(task, pa.concat_tables(changes)))
        return found
