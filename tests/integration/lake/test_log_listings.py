"""Which commit logs are listed again, and the planned removals that are dropped."""

import shutil
from pathlib import Path

import pytest

from tests.integration.lake.test_log_cleanup import KEEP_S, NAME, cleanup, make_table, opens
from tests.support.lakes.aged_logs import age, checkpoint_path, commit_path, lengthen, versions
from tidemark.pipeline.delta_log.commit_files import LOG_FOLDER
from tidemark.pipeline.delta_log.log_cleanup import CHECKPOINT_BEHIND_MAX, EVERY_COMMITS


@pytest.mark.parametrize("moved_away", [True, False], ids=["replaced", "restored"])
def test_planned_removals_are_dropped_with_the_log_for_which_they_were_planned(
    tmp_path: Path,
    moved_away: bool,  # noqa: FBT001 - a parameter
) -> None:
    table = make_table(tmp_path)
    cleaning = cleanup(tmp_path)
    recorded = lengthen(table, 200, checkpoint_every=100)
    assert cleaning.run([(NAME, recorded)], removed_max=1) == 1
    if moved_away:
        table.rename(tmp_path / "moved away")
        make_table(tmp_path)
        recorded = lengthen(table, 250, after_checkpoint=250)  # none yet
    else:
        recorded = 90  # below the first checkpoint
    before = versions(table)
    assert cleaning.run([(NAME, recorded)]) == 0
    assert versions(table) == before


def test_a_log_with_few_new_commits_is_not_listed_again(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    version = lengthen(table, 140, after_checkpoint=10)
    young, old = cleanup(tmp_path, KEEP_S), cleanup(tmp_path)
    assert young.run([(NAME, version)]) == 0
    assert old.run([(NAME, version)]) == version - 10
    version = lengthen(table, 20, after_checkpoint=5)
    age(table, 2 * KEEP_S)
    for cleaning in (young, old):
        for recorded in (version - 1, version, version):
            assert cleaning.run([(NAME, recorded)]) == 0
    version = lengthen(table, EVERY_COMMITS)
    age(table, 2 * KEEP_S)
    assert young.run([(NAME, version)])


@pytest.mark.parametrize(
    ("files", "keep_s", "again"),
    [
        (CHECKPOINT_BEHIND_MAX, 0.0, False),
        (CHECKPOINT_BEHIND_MAX + 1, 0.0, True),
        (CHECKPOINT_BEHIND_MAX + 1, KEEP_S, False),
    ],
)
def test_a_long_log_is_listed_again_after_the_kept_time(
    tmp_path: Path,
    files: int,
    keep_s: float,
    again: bool,  # noqa: FBT001 - a parameter
) -> None:
    table = make_table(tmp_path)
    version = lengthen(table, 150, after_checkpoint=150)  # without a checkpoint: the first listing writes one
    for number in range(files - version - 1):
        (table / LOG_FOLDER / f"other-{number}").touch()
    cleaning = cleanup(tmp_path, keep_s)
    assert cleaning.run([(NAME, version)]) == 0
    version = lengthen(table, 1)
    age(table, 2 * KEEP_S)
    assert bool(cleaning.run([(NAME, version)])) is again


def test_a_torn_checkpoint_below_the_last_one_is_not_a_base(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    version = lengthen(table, 150, checkpoint_every=50)
    assert version == 151
    torn = checkpoint_path(table, 101)
    torn.write_bytes(torn.read_bytes()[:100])
    cleanup(tmp_path).run([(NAME, 149)])
    assert versions(table)[0] == 51
    assert opens(table)


@pytest.mark.parametrize("behind", [CHECKPOINT_BEHIND_MAX, CHECKPOINT_BEHIND_MAX + 1])
def test_a_checkpoint_that_is_far_behind_is_replaced_before_anything_is_removed(tmp_path: Path, behind: int) -> None:
    table = make_table(tmp_path)
    version = lengthen(table, 20 + behind, after_checkpoint=behind)
    is_far = behind > CHECKPOINT_BEHIND_MAX
    assert cleanup(tmp_path).run([(NAME, version)]) == (0 if is_far else version - behind)
    assert checkpoint_path(table, version).exists() is is_far
    assert versions(table)[0] == (0 if is_far else version - behind)


def test_a_file_that_cannot_be_removed_ends_the_removal_in_its_log_alone(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    other = tmp_path / "other"
    version = lengthen(table, 20, after_checkpoint=5)
    shutil.copytree(table, other)
    commit_path(table, 7).unlink()
    commit_path(table, 7).mkdir()  # unlink(2) refuses a folder
    assert cleanup(tmp_path).run([(NAME, version), (other.name, version)]) == 7 + version - 5
    assert versions(table) == list(range(7, version + 1))
    assert versions(other) == list(range(version - 5, version + 1))
    assert opens(table)


def test_compacted_commits_are_removed_only_if_they_end_below_the_base(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    version = lengthen(table, 20, after_checkpoint=5)
    below, across = (table / LOG_FOLDER / f"{3:020}.{last:020}.compacted.json" for last in (6, version))
    for path in (below, across):
        path.touch()
    cleanup(tmp_path).run([(NAME, version)])
    assert (below.exists(), across.exists()) == (False, True)
