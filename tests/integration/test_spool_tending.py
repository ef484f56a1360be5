"""A spool that a real server fills: what is trimmed is needed no more, also by a state that is made anew from it."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.archiving import Archiving, archiving
from tests.support.captures import Sidecar
from tests.support.cdcctl import cdcctl, contents, succeeded
from tidemark.io.archive_state import archive_state
from tidemark.io.config import ArchiveConfig, Config
from tidemark.io.history_copy import history_folder
from tidemark.io.history_files import load_catalogs
from tidemark.io.state import StateStore
from tidemark.io.trimming import Trimmed
from tidemark.runtime.spool_tending import Tended, tend_spool

MB = 1 << 20


@pytest.fixture
def archive() -> Iterator[Archiving]:
    with tempfile.TemporaryDirectory(prefix="tm-") as folder, archiving(Path(folder)) as made:
        made.node.sql("CREATE TABLE item (id int PRIMARY KEY)")
        yield made


@pytest.fixture
def sidecar(archive: Archiving, tmp_path: Path) -> Iterator[Sidecar]:
    made = Sidecar(archive.node, "postgres", tmp_path, TIDEMARK_ARCHIVE__FOLDER=str(archive.spool.folder))
    made.init()
    yield made
    made.close()


def configured(archive: Archiving, **options: int) -> Config:
    return Config(archive=ArchiveConfig(folder=str(archive.spool.folder), **options))


def tend(archive: Archiving, sidecar: Sidecar, **options: int) -> Tended:
    with StateStore.open(sidecar.folder) as store:
        tended = tend_spool(configured(archive, **options), store)
    assert tended is not None
    return tended


def deliver_over(archive: Archiving, sidecar: Sidecar, segments: int) -> None:
    """Have rows delivered in each of so many segments, all archived."""
    for number in range(segments):
        archive.node.sql(f"INSERT INTO item SELECT coalesce(max(id), 0) + 1 FROM item -- {number}")
        archive.switch()
    archive.wait_until_archived()
    sidecar.catch_up()


def test_what_is_trimmed_nobody_needs_and_a_state_made_anew_goes_on_from_the_rest(
    archive: Archiving, sidecar: Sidecar
) -> None:
    sidecar.start()
    deliver_over(archive, sidecar, 3)
    first = tend(archive, sidecar)
    assert first.trimmed == Trimmed()  # there was no manifest yet: only now a lost state could be made anew
    deliver_over(archive, sidecar, 3)
    second = tend(archive, sidecar)
    assert first.manifest is not None
    assert second.manifest is not None
    assert second.trimmed.file_count >= 2
    state = archive_state(archive.spool.folder, MB)
    start_lsn = first.manifest.start.restart_lsn
    assert state.path[0].start_lsn == start_lsn // MB * MB
    assert state.gap_after(start_lsn) is None
    assert tend(archive, sidecar, keep_bytes=1 << 30).trimmed == Trimmed()
    told = json.loads(
        succeeded(cdcctl("archive", "status", "--json", "--state", sidecar.folder.root, **sidecar.options)).out
    )
    assert told["history_copied"]
    assert told["owner"] == "Tidemark: trimmed"
    assert "nothing is missing" in told["delivered"] or "not archived yet" in told["delivered"]
    assert told["holes"] == []
    sidecar.kill()
    archive.node.sql("INSERT INTO item VALUES (1000)")
    archive.switch(2)
    archive.wait_until_archived()
    tend(archive, sidecar)

    shutil.rmtree(sidecar.folder.root)
    config = archive.spool.folder.parent / "anew.toml"
    config.write_text("")
    command = ("init", "--state", sidecar.folder.root, "--config", config, "--from-spool", archive.spool.folder)
    succeeded(cdcctl(*command, **sidecar.options))
    with StateStore.open(sidecar.folder) as store:
        view = store.view()
    assert view.start is not None
    state = archive_state(archive.spool.folder, MB)
    assert state.gap_after(view.start.restart_lsn) is None
    assert state.end_lsn is not None
    assert state.end_lsn - view.start.restart_lsn >= MB
    load_catalogs(sidecar.folder.history, view.history, view.journal, view.start.restart_lsn)


def test_nothing_is_done_to_a_folder_that_is_not_ours_or_not_configured(
    archive: Archiving, sidecar: Sidecar, tmp_path: Path
) -> None:
    foreign = tmp_path / "foreign"
    shutil.copytree(archive.spool.folder, foreign)
    (foreign / ".tidemark").unlink()
    before = contents(foreign)
    elsewhere = Config(archive=ArchiveConfig(folder=str(foreign)))
    with StateStore.open(sidecar.folder) as store:
        assert tend_spool(elsewhere, store) is None
        assert tend_spool(replace(elsewhere, archive=ArchiveConfig()), store) is None
    assert contents(foreign) == before
    assert not history_folder(archive.spool).exists()
