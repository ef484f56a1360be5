"""The pause of the archiver's maintenance: a small share of the CPU, except while segments remain to be removed."""

import pytest
from tidemark_archiver.archive_maintenance import CPU_SHARE_MAX, MAINTENANCE_S, maintenance_pause_s

from tidemark.io.archive.trimming import FILES_MAX, Trimmed
from tidemark.runtime.daemon.spool_maintenance import MaintainedSpool

BUSY_S = 5.0  # of CPU


def removed(files: int) -> MaintainedSpool:
    return MaintainedSpool(None, Trimmed(files, files), None)


@pytest.mark.parametrize("maintained", [None, removed(0), removed(FILES_MAX - 1)])
def test_a_maintenance_that_used_much_cpu_is_not_repeated_soon(maintained: MaintainedSpool | None) -> None:
    assert maintenance_pause_s(0.0, maintained) == MAINTENANCE_S
    assert maintenance_pause_s(BUSY_S, maintained) == BUSY_S / CPU_SHARE_MAX


def test_segments_that_remain_are_removed_soon_whatever_their_removal_costs() -> None:
    assert maintenance_pause_s(BUSY_S, removed(FILES_MAX)) == MAINTENANCE_S
