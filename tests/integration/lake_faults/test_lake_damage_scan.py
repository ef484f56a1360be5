"""The search for damage: its criteria, the files that it reads, and its reaction to a stop."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from tests.integration.lake.test_lake_changes import FOLDER, ScriptedLake, delete, new_lake
from tests.integration.lake.test_lake_quiet import SecondTable
from tests.integration.lake_faults.test_lake_damage import cut, data_files, garble
from tests.support.lakes.lakes import IDENTITY, batch, replica_rows
from tests.support.lakes.scripted_table import DATABASE
from tests.support.processes.descriptors import no_descriptors
from tidemark.model.lsn import Oid
from tidemark.pipeline.delta_log import commits, damage
from tidemark.pipeline.delta_log.commits import changed_columns
from tidemark.pipeline.delta_log.damage import BATCH_ROWS, ScanStopped, damage_of
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.positions.table_position import TableState
from tidemark.pipeline.lake.tables import table_opening
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.lake.tables.table_errors import LakeFailed
from tidemark.pipeline.sinks.lake import Lake

CELL_BYTES = 1 << 10


@pytest.mark.feature("L01")
def test_a_process_without_free_descriptors_makes_no_table_diverge(tmp_path: Path) -> None:
    fed = ScriptedLake(tmp_path)
    recorded = fed.position().replica.recorded
    with no_descriptors(), pytest.raises(LakeFailed) as raised:
        LakeTable(fed.path("replica"), "app", recorded)
    assert "os error 24" in str(raised.value)
    with no_descriptors():
        assert damage_of(fed.path("replica")) == ""
    fed.update(5, "again")
    assert fed.state() is TableState.LIVE


@pytest.mark.parametrize(
    "error", [OSError(24, "Too many open files"), OSError(12, "no memory"), MemoryError()], ids=str
)
def test_a_file_that_the_host_cannot_open_temporarily_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    fed = ScriptedLake(tmp_path)

    def refuse(_path: Path) -> pq.ParquetFile:
        raise error

    monkeypatch.setattr(pq, "ParquetFile", refuse)  # the check runs before the bytes of the file are read
    assert damage_of(fed.path("replica")) == ""


@pytest.mark.feature("L01")
def test_rows_that_may_be_wide_are_read_a_bounded_number_at_a_time(tmp_path: Path) -> None:
    uri, checks = str(tmp_path / "wide"), list[int]()

    def count() -> bool:
        checks.append(1)
        return False

    write_deltalake(uri, pa.table({"wide": ["x" * CELL_BYTES] * (3 * BATCH_ROWS)}))
    assert damage_of(uri, is_over=count) == ""
    assert len(checks) >= 3  # one after each read


@pytest.mark.feature("L01")
def test_a_file_that_pyarrow_cannot_read_in_one_piece_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = ScriptedLake(tmp_path)

    def refuse(_file: pq.ParquetFile, **_options: int) -> Iterator[pa.RecordBatch]:
        raise pa.ArrowNotImplementedError("Nested data conversions not implemented for chunked array outputs")

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", refuse)
    assert damage_of(fed.path("replica")) == ""


@pytest.mark.feature("L01")
def test_a_log_that_could_not_be_opened_once_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fed, opened = ScriptedLake(tmp_path), list[str]()

    def fail_once(uri: str) -> DeltaTable:
        opened.append(uri)
        if len(opened) == 1:
            raise DeltaError("Generic LocalFileSystem error")
        return DeltaTable(uri)

    monkeypatch.setattr(damage, "open_delta", fail_once)
    assert damage_of(fed.path("replica")) == ""
    assert opened == [fed.path("replica")] * 2


@pytest.mark.feature("L01")
def test_a_quiet_table_with_an_unreadable_folder_ends_no_batch(tmp_path: Path) -> None:
    fed, beside, opened = ScriptedLake(tmp_path), SecondTable(), new_lake(tmp_path)
    known = fed.position()
    refused = replace(known, relation=Oid(30_000), folder="n" * 300)  # the file system refuses access, also for root
    opened.positions.tables[DATABASE, refused.relation] = refused
    for _ in range(3):
        beside.apply_change(opened)
    assert opened.positions.tables[DATABASE, refused.relation] is refused
    assert fed.state() is TableState.LIVE


@pytest.mark.feature("L01")
@pytest.mark.parametrize("harm", [garble, cut], ids=lambda harm: harm.__name__)
def test_a_stop_ends_the_search_for_damage(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    fed = ScriptedLake(tmp_path)
    (file,) = data_files(fed, "replica")
    assert damage_of(fed.path("replica")) == ""
    with pytest.raises(ScanStopped):
        damage_of(fed.path("replica"), is_over=lambda: True)
    harm(file)
    assert str(file) in damage_of(fed.path("replica"), is_over=lambda: False)


@pytest.mark.feature("L01")
def test_a_new_copy_of_a_diverged_table_reads_no_data_file_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed, read = ScriptedLake(tmp_path), set[Path]()
    delete(fed, "replica")
    fed.update(3, "diverges")
    assert fed.state() is TableState.DIVERGED
    file_of, before = pq.ParquetFile, set(tmp_path.rglob("*.parquet"))

    def recorded_file(path: Path) -> pq.ParquetFile:
        read.add(path)
        return file_of(path)

    monkeypatch.setattr(pq, "ParquetFile", recorded_file)
    fed.recopy()
    fed.update(7, "live again")
    assert fed.state() is TableState.LIVE
    assert not read & before, "only files that the new copy wrote"
    assert replica_rows(tmp_path, FOLDER) == fed.table.expected()


@pytest.mark.feature("L01")
def test_a_host_error_in_a_message_of_delta_rs_is_no_divergence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = ScriptedLake(tmp_path)
    recorded = fed.position().replica.recorded

    def refuse(_uri: str, *_options: object) -> DeltaTable:
        raise DeltaError("Generic LocalFileSystem error: Too many open files (os error 24)")

    for module in (table_opening, commits):
        monkeypatch.setattr(module, "open_delta", refuse)
    with pytest.raises(LakeFailed):
        LakeTable(fed.path("replica"), "app", recorded)
    with pytest.raises(DeltaError):
        changed_columns(fed.path("replica"), 0, 1)


@pytest.mark.feature("L01")
def test_a_batch_that_is_stopped_during_the_search_for_damage_leaves_its_table_unchanged(tmp_path: Path) -> None:
    fed = ScriptedLake(tmp_path)
    (file,) = data_files(fed, "replica")
    kept = file.read_bytes()
    garble(file)
    fed.table.commit()
    fed.table.update((5,), {2: "after"})
    with pytest.raises(LakeFailed):
        Lake(str(tmp_path), IDENTITY, shape_of, constants_of, is_over=lambda: True).apply(batch(fed.pending()))
    assert fed.state() is TableState.LIVE
    file.write_bytes(kept)
    fed.apply_pending()
    assert replica_rows(tmp_path, FOLDER) == fed.table.expected()
