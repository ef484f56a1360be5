"""A copied table's lines on disk: given back in blocks of whole lines, whatever the bounds are."""

from itertools import pairwise
from pathlib import Path

import pytest

from tidemark.io.copy_spool import CopySpool

LINES = [b"%d\t%s\n" % (number, b"x" * (number * 37 % 400)) for number in range(200)]
LONG = b"y" * (3 << 20) + b"\n"  # longer than what is read at once


@pytest.mark.parametrize("rows_max", [1, 7, 1000])
@pytest.mark.parametrize("bytes_max", [1, 1000, 1 << 24])
def test_blocks_are_whole_lines_in_order_within_the_bound_of_rows(
    tmp_path: Path, rows_max: int, bytes_max: int
) -> None:
    with CopySpool(tmp_path, 1 << 30) as spool:
        cuts = pairwise([0, 3, 50, len(LINES)])
        spool.fill([*(b"".join(LINES[start:stop]) for start, stop in cuts), LONG, LINES[0]], "public.t")
        blocks = list(spool.blocks(rows_max, bytes_max))
    assert b"".join(block for block, _ in blocks) == b"".join([*LINES, LONG, LINES[0]])
    for block, rows in blocks:
        assert block.endswith(b"\n")
        assert block.count(b"\n") == rows <= rows_max
