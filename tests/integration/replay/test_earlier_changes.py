"""`cdcctl table add`: the log of a table that was selected late, equal to that of a capture that always had it."""

import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from struct import pack_into, unpack_from

import google_crc32c
import pytest
from deltalake import DeltaTable

from tests.support.lakes.changed_tables import DATABASE, LARGE_ROWS
from tests.support.lakes.lake_contents import log_of, replica_of, values, without_lock
from tests.support.lakes.lakes import replica_rows
from tests.support.lakes.late_lake import EARLIER, READER, TABLES, Captured, record_late_tables
from tests.support.processes.cdcctl import cdcctl, refused, succeeded
from tests.support.servers.small_disk import needs_mount, small_disk
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.process.config_loading import load_config
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.commit_time import CommitTime
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import Lsn, format_lsn
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.earlier.earlier_changes import UNFINISHED
from tidemark.pipeline.lake.lake_lock import LakeLock
from tidemark.pipeline.lake.report import OpenedLake
from tidemark.pipeline.lake.tables.table_properties import SOURCE
from tidemark.pipeline.replay.moment import LsnMoment
from tidemark.pipeline.replay.refusal import ReplayRefused
from tidemark.pipeline.replay.replaying import replay
from tidemark.pipeline.replay.result_target import FolderTarget
from tidemark.runtime.plugins.plugins import load_plugins
from tidemark.runtime.replay.archive_blocks import archived_blocks
from tidemark.runtime.replay.commit_times import TransactionTimes
from tidemark.wal.segments import segment_name
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress
from tidemark.wire.state.plugin_log import PluginLog
from tidemark.wire.state.state_keys import PLUGINS
from tidemark.wire.values import ValueKind

FULL_LEAVES_BYTES = (4096, 20_480, 40_960, 61_440)
KILLS = ("earlier-marked", "events-recorded", "earlier-written:2", "files-written", "earlier-committed")


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    return record_late_tables(tmp_path_factory.mktemp("earlier"))


def replayed(lake: Path, table: str, at: Lsn, to: Path) -> list[object]:
    opened = OpenedLake(str(lake))
    replay(opened, opened.find(f"public.{table}"), LsnMoment(at), FolderTarget(to / "replica"))
    return [values(row) for row in replica_rows(to, "")]


@pytest.mark.feature("N05")
@pytest.mark.parametrize("table", TABLES)
def test_the_log_equals_that_of_a_capture_which_always_had_the_table(
    captured: Captured, table: str, tmp_path: Path
) -> None:
    lake, expected = captured.late_lake(tmp_path), log_of(captured.always, table)
    before = log_of(lake, table)
    report = json.loads(succeeded(captured.add(lake, f"public.{table}", "--json")).out)
    added = log_of(lake, table)
    assert report["rows"] == len(added) - len(before)
    captured.land_rest(lake)
    found = log_of(lake, table)
    assert len(found) == len(expected)
    for row, wanted in zip(found, expected, strict=True):
        assert row == wanted


@pytest.mark.feature("N05")
def test_the_rows_at_a_moment_before_the_table_was_selected_follow_from_its_creation_or_truncation(
    captured: Captured, tmp_path: Path
) -> None:
    lake = captured.late_lake(tmp_path)
    moments = list(captured.after.values())
    succeeded(captured.add(lake, "public.keyless"))
    truncated = next(number for number, text in enumerate(EARLIER) if text.startswith("TRUNCATE"))
    for number in range(truncated, len(EARLIER)):
        expected = replayed(captured.always, "keyless", moments[number], tmp_path / f"always-{number}")
        assert replayed(lake, "keyless", moments[number], tmp_path / f"late-{number}") == expected


@pytest.mark.feature("N05")
def test_an_interrupted_command_is_repeated_and_adds_every_change_once(captured: Captured, tmp_path: Path) -> None:
    lake, expected = captured.late_lake(tmp_path), log_of(captured.always, "keyed")
    before = log_of(lake, "keyed")
    for point in KILLS:
        killed = captured.add(lake, "public.keyed", TIDEMARK_FAILPOINT=point)
        assert killed.code == 128 + signal.SIGKILL, (point, killed.err)
        is_added = point == KILLS[-1]
        assert (log_of(lake, "keyed") == before) is not is_added, point
        assert [gap.reason for gap in OpenedLake(str(lake)).find("public.keyed").breaks] == [UNFINISHED], point
    assert json.loads(succeeded(captured.add(lake, "public.keyed", "--json")).out)["rows"] == 0
    captured.land_rest(lake)
    assert log_of(lake, "keyed") == expected
    assert not OpenedLake(str(lake)).find("public.keyed").breaks
    assert cdcctl("lake", "check", "--lake", lake, "--read-files").code == ExitCode.SUCCESS


@pytest.mark.feature("N05")
def test_an_attempt_that_follows_an_interrupted_one_begins_where_that_did(captured: Captured, tmp_path: Path) -> None:
    """Its events are recorded: without the changes behind them, a replay would be wrong."""
    lake, moments = captured.late_lake(tmp_path), list(captured.after.values())
    captured.add(lake, "public.keyless", TIDEMARK_FAILPOINT="earlier-written")
    with pytest.raises(ReplayRefused, match=UNFINISHED):
        replayed(lake, "keyless", moments[-1], tmp_path / "interrupted")
    succeeded(captured.add(lake, "public.keyless", begin=format_lsn(moments[-2])))
    captured.land_rest(lake)
    assert log_of(lake, "keyless") == log_of(captured.always, "keyless")
    expected = replayed(captured.always, "keyless", moments[-1], tmp_path / "always")
    assert replayed(lake, "keyless", moments[-1], tmp_path / "late") == expected


@pytest.mark.feature("N05")
@pytest.mark.parametrize("table", ["keyless", "parts"])
def test_the_replica_gets_all_rows_if_the_table_was_truncated_or_if_there_is_a_base_backup(
    captured: Captured, table: str, tmp_path: Path
) -> None:
    lake = captured.late_lake(tmp_path)
    backup = () if table == "keyless" else ("--base-backup", captured.root / "backup")
    killed = captured.add(lake, f"public.{table}", *backup, TIDEMARK_FAILPOINT="earlier-committed")
    assert killed.code == 128 + signal.SIGKILL
    report = json.loads(succeeded(captured.add(lake, f"public.{table}", *backup, "--json")).out)
    assert (report["rows"], report["replica"].partition(",")[0]) == (0, "all rows")
    captured.land_rest(lake)
    assert replica_of(lake, table) == captured.rows[table]
    for name in ("log", "replica"):
        folder = lake / OpenedLake(str(lake)).find(f"public.{table}").folder / name
        assert DeltaTable(str(folder)).metadata().configuration[SOURCE].endswith(f"/{DATABASE}/public.{table}")


@pytest.mark.feature("N05")
def test_the_replica_stays_as_it_is_if_its_rows_are_unknown(captured: Captured, tmp_path: Path) -> None:
    lake = captured.late_lake(tmp_path)
    before = replica_of(lake, "keyed")
    report = json.loads(succeeded(captured.add(lake, "public.keyed", "--json")).out)
    assert report["replica"].startswith("unchanged: public.keyed: the log has no complete copy of it")
    assert replica_of(lake, "keyed") == before


@pytest.mark.feature("N15")
def test_earlier_changes_pass_the_transforms_of_the_configuration(captured: Captured, tmp_path: Path) -> None:
    lake, config = captured.late_lake(tmp_path), tmp_path / "tidemark.toml"
    config.write_text('[[transforms]]\nuse = "tidemark:Mask"\ncolumns = ["public.keyed.remark|note"]\n')
    before = log_of(lake, "keyed")
    refused(captured.add(lake, "public.keyed", "--config", config), ExitCode.CONFIG, "transforms", "masks:Mask")
    assert log_of(lake, "keyed") == before
    state = StateFolder(tmp_path / "state")
    shutil.copytree(captured.late.root, state.root, ignore=shutil.ignore_patterns("*.sock"))
    uses = load_plugins(load_config(config, {}), "the configuration").uses
    with StateStore.open(state) as store, store.transaction(None) as transaction:
        transaction.put(PLUGINS, PluginLog(uses.consumer.name, {"sidecar": uses}))
    succeeded(replace(captured, late=state).add(lake, "public.keyed", "--config", config))
    earlier = log_of(lake, "keyed")[: -len(before)]
    assert earlier
    assert not any(name in row for row in earlier if isinstance(row, dict) for name in ("note", "remark"))


@pytest.mark.feature("N05")
def test_what_cannot_be_added_is_refused_with_the_reason(captured: Captured, tmp_path: Path) -> None:
    lake = captured.late_lake(tmp_path)
    before = without_lock(lake)
    refused(captured.add(lake, "public.missing"), ExitCode.CONFIG, "has no table public.missing")
    for table in ("public.keyed", "public.keyless"):  # the second has no change in the lake
        refused(captured.add(lake, table, begin="0/FFFFFFFF"), ExitCode.CONFIG, "its log begins at")
        refused(captured.add(lake, table, begin="0/1"), ExitCode.STATE, "no catalog base for 0/1")
    with RoleLock.acquire(captured.late, f"pipeline-{READER}"):
        refused(captured.add(lake, "public.keyed"), ExitCode.FENCED, "pipeline")
    assert without_lock(lake) == before


@pytest.mark.feature("N05")
def test_an_attempt_from_a_time_leaves_out_no_transaction_behind_the_first_one(
    captured: Captured, tmp_path: Path
) -> None:
    """Commit records are not in the order of their times: a log with a hole would never be completed."""
    statement = "UPDATE keyed SET note = 'second' WHERE id % 3 = 0"
    archive = shutil.copytree(captured.root / "archive", tmp_path / "archive")
    before, after = captured.after[EARLIER[EARLIER.index(statement) - 1]], captured.after[statement]
    time = set_forward(archive, before, after, seconds=300)
    by_lsn, by_time = captured.late_lake(tmp_path / "lsn"), captured.late_lake(tmp_path / "time")
    from_archive = replace(captured, archive=archive)
    expected = json.loads(succeeded(from_archive.add(by_lsn, "public.keyed", "--json", begin=format_lsn(before))).out)
    found = json.loads(succeeded(from_archive.add(by_time, "public.keyed", "--json", begin=str(time))).out)
    assert found == expected
    assert log_of(by_time, "keyed") == log_of(by_lsn, "keyed")


@pytest.mark.feature("N05")
def test_rows_that_log_keep_days_would_delete_are_counted_with_the_remedy(captured: Captured, tmp_path: Path) -> None:
    statement = "UPDATE keyed SET note = 'second' WHERE id % 3 = 0"
    archive = shutil.copytree(captured.root / "archive", tmp_path / "archive")
    before, after = captured.after[EARLIER[EARLIER.index(statement) - 1]], captured.after[statement]
    set_forward(archive, before, after, seconds=-3 * 86_400)
    config = tmp_path / "tidemark.toml"
    config.write_text('[[lake.tables]]\npattern = "public.keyed"\nlog_keep_days = 2\n')
    old = replace(captured, archive=archive)
    report = json.loads(
        succeeded(old.add(captured.late_lake(tmp_path), "public.keyed", "--config", config, "--json")).out
    )
    assert report["expiring_rows"] == 40 // 3
    assert "log_keep_days = 2: the pipeline deletes them" in report["warning"]
    kept = captured.late_lake(tmp_path / "without")
    assert "expiring_rows" not in json.loads(succeeded(old.add(kept, "public.keyed", "--json")).out)


def set_forward(archive: Path, begin: Lsn, end: Lsn, seconds: int) -> CommitTime:
    """Set the time of the first commit record in a range later; return a time between the old and the new one."""
    opened = ArchiveFolder(archive)
    blocks = map(TransactionTimes, archived_blocks(opened, begin))
    found = next(block.end(number) for block in blocks for number in range(len(block)))
    assert found.lsn < end
    path = archive / segment_name(1, found.lsn // opened.segment_bytes, opened.segment_bytes)
    content, at = bytearray(path.read_bytes()), found.lsn % opened.segment_bytes
    (length,) = unpack_from("<I", content, at)
    assert at % 8192 + length <= 8192, "the record is on one page"
    (time,) = unpack_from("<q", content, at + 26)
    pack_into("<q", content, at + 26, time + seconds * 1_000_000)
    rest, head = bytes(content[at + 24 : at + length]), bytes(content[at : at + 20])
    pack_into("<I", content, at + 20, google_crc32c.extend(google_crc32c.value(rest), head))
    path.write_bytes(content)
    return CommitTime(found.time.us + seconds * 1_000_000 // 2)


@pytest.mark.feature("N05")
def test_changes_of_partitions_are_added_that_were_made_under_another_name_of_their_root(
    captured: Captured, tmp_path: Path
) -> None:
    lake = captured.late_lake(tmp_path)
    assert json.loads(succeeded(captured.add(lake, "public.stems", "--json")).out)["rows"] == 1
    captured.land_rest(lake)
    assert replica_of(lake, "stems") == [{"id": 2, "note": "later"}]
    assert len(log_of(lake, "stems")) == 2


@pytest.mark.feature("N05")
def test_rows_of_a_base_backup_are_not_doubled_by_the_rest_of_a_transaction_of_which_the_lake_has_a_part(
    captured: Captured, tmp_path: Path
) -> None:
    lake = captured.late_lake(tmp_path)
    captured.land_rest(lake, inside_last_transaction(captured.late))
    assert 0 < len(log_of(lake, "large")) < LARGE_ROWS
    succeeded(captured.add(lake, "public.large", "--base-backup", captured.root / "backup"))
    captured.land_rest(lake)
    assert len(log_of(lake, "large")) == LARGE_ROWS
    assert len(replica_of(lake, "large")) == LARGE_ROWS


def inside_last_transaction(state: StateFolder) -> OutboxSequence:
    """Return the end of the first group of the last transaction with rows."""
    with OutboxReader.open(state) as reader:
        headers = [value.header for value in reader.read(OutboxSequence(0), reader.head())]
    headers = [header for header in headers if header.kind is ValueKind.BATCH]
    groups = sorted({header.group_last for header in headers if header.last.commit_lsn == headers[-1].last.commit_lsn})
    assert len(groups) > 1, headers
    return groups[0]


@pytest.mark.feature("N05")
def test_a_configuration_that_does_not_select_the_table_is_refused(captured: Captured, tmp_path: Path) -> None:
    """Without its partition_roots, no change of a partition would be found."""
    lake = captured.late_lake(tmp_path)
    roots = {"TIDEMARK_SELECT__PARTITION_ROOTS": "public.none"}
    captured.land_rest(lake)
    before = without_lock(lake)
    refused(captured.add(lake, "public.parts", **roots), ExitCode.CONFIG, "public.parts")
    assert without_lock(lake) == before


@pytest.mark.feature("N05")
@pytest.mark.parametrize("phase", [CopyPhase.WAITING, CopyPhase.COPYING, CopyPhase.DONE])
def test_a_table_whose_first_copy_is_not_in_the_lake_is_refused(
    captured: Captured, phase: CopyPhase, tmp_path: Path
) -> None:
    """The changes until the snapshot of the copy would be missing between the added ones and the copy."""
    lake, state = captured.late_lake(tmp_path), StateFolder(tmp_path / "state")
    shutil.copytree(captured.late.root, state.root, ignore=shutil.ignore_patterns("*.sock"))
    of = next(
        (known.database, known.relation) for known in OpenedLake(str(captured.always)).tables if known.name == "parts"
    )
    with StateStore.open(state) as store, store.transaction(None) as transaction:
        transaction.put_copy(*of, CopyProgress(phase, 1))
    before = without_lock(lake)
    refused(replace(captured, late=state).add(lake, "public.parts"), ExitCode.CONFIG, "its first copy")
    assert without_lock(lake) == before


@pytest.mark.feature("N05")
def test_a_lake_that_a_pipeline_of_another_host_writes_is_refused(captured: Captured, tmp_path: Path) -> None:
    lake = captured.late_lake(tmp_path)
    with StateStore.open(captured.late, read_only=True) as store:
        identity, keys = store.view().identity, store.marker_keys().names.values()
    assert keys, "the hosts of a capture have one key"
    with LakeLock.acquire(lake, identity, tmp_path / "other", READER, keys, state_host="other"):
        refused(captured.add(lake, "public.keyed"), ExitCode.CONFIG, "is written by")


@pytest.mark.feature("N05")
def test_a_configuration_that_leaves_out_other_changes_or_has_other_settings_of_the_table_is_refused(
    captured: Captured, tmp_path: Path
) -> None:
    lake, config = captured.late_lake(tmp_path), tmp_path / "tidemark.toml"
    before = without_lock(lake)
    config.write_text('[[lake.tables]]\npattern = "public.keyed"\nsoft_deletes = true\n')
    other = captured.add(lake, "public.keyed", "--config", config)
    refused(other, ExitCode.CONFIG, "public.keyed: ", "soft_deletes = true", "soft_deletes = false")
    other = captured.add(lake, "public.keyed", TIDEMARK_SELECT__EXCLUDE_ORIGINS="any")
    refused(
        other, ExitCode.CONFIG, "select.exclude_origins of the configuration (any) is not that of the sidecar (none)"
    )
    assert without_lock(lake) == before


@pytest.mark.feature("N05")
def test_no_log_is_created_that_the_configuration_excludes(captured: Captured, tmp_path: Path) -> None:
    lake, config = captured.late_lake(tmp_path), tmp_path / "tidemark.toml"
    config.write_text('[[lake.tables]]\npattern = "public.parts"\nwrite = "replica"\n')
    refused(captured.add(lake, "public.parts", "--config", config), ExitCode.CONFIG, "write = 'replica'")


@needs_mount
@pytest.mark.feature("N05")
@pytest.mark.parametrize("leave_bytes", FULL_LEAVES_BYTES)
def test_a_full_disk_is_reported_and_a_repeated_command_adds_every_change_once(
    captured: Captured, leave_bytes: int, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 64 << 20) as disk:
        lake = captured.late_lake(disk.root)
        disk.fill(leave_bytes=leave_bytes)
        refused(captured.add(lake, "public.keyed"), ExitCode.STATE, "No space left")
        disk.empty()
        succeeded(captured.add(lake, "public.keyed"))
        captured.land_rest(lake)
        assert log_of(lake, "keyed") == log_of(captured.always, "keyed")
