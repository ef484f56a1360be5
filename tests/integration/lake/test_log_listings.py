"""Which commit logs are listed again, and the planned removals that are dropped."""

from pathlib import Path

import pytest

from tests.integration.lake.test_log_cleanup import KEEP_S, NAME, cleanup, make_table, opens
from tests.support.lakes.aged_logs import age, checkpoint_path, lengthen, versions
from tidemark.pipeline.delta_log.log_cleanup import CHECKPOINT_BEHIND_MAX, EVERY_COMMITS, LOG_FOLDER


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
