"""A copied table's lines, on disk or in transit: returned in the order of writing, also during more writes."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest

from tidemark.io.node.copy_spool import CopySpool, TableTooLarge
from tidemark.io.node.copy_stream import CopyBlock

DEADLINE_S = 60.0
BLOCKS = [CopyBlock(b"%d\t%s\n" % (number, b"x" * (number * 37 % 400)) * number, number) for number in range(1, 50)]
LONG = CopyBlock(b"y" * (3 << 20) + b"\n", 1)
QUIET = CopyBlock(b"", 0)


class BrokenOff(Exception):
    """The error that ended the writer."""


def test_blocks_are_returned_in_order_and_empty_ones_are_not(tmp_path: Path) -> None:
    with CopySpool(tmp_path, 1 << 30) as spool:
        spool.fill([QUIET, *BLOCKS, QUIET, LONG], "public.t")
        assert list(spool.blocks()) == [*BLOCKS, LONG]


def test_a_block_is_returned_before_the_next_one_arrives(tmp_path: Path) -> None:
    is_given = threading.Event()

    def blocks() -> Iterator[CopyBlock]:
        yield BLOCKS[0]
        assert is_given.wait(DEADLINE_S)
        yield BLOCKS[1]

    with CopySpool(tmp_path, 1 << 30) as spool, ThreadPoolExecutor(1) as pool:
        filled = pool.submit(spool.fill, blocks(), "public.t")
        given = spool.blocks()
        assert next(given) == BLOCKS[0]
        is_given.set()
        assert list(given) == [BLOCKS[1]]
        filled.result()


@pytest.mark.parametrize("read_between", [0, 1, 2, 3, 7, 12])
def test_blocks_keep_their_order_whichever_thread_is_faster(tmp_path: Path, read_between: int) -> None:
    read: list[CopyBlock] = []

    def blocks() -> Iterator[CopyBlock]:
        for number, block in enumerate(BLOCKS):
            yield block
            if number % 12 == 11:  # the others lag by some
                read.extend(islice(given, read_between))

    with CopySpool(tmp_path, 1 << 30) as spool:
        given = spool.blocks()
        spool.fill(blocks(), "public.t")
        assert [*read, *given] == BLOCKS


def test_blocks_that_are_read_at_once_are_not_written_to_disk(tmp_path: Path) -> None:
    def blocks() -> Iterator[CopyBlock]:
        for block in BLOCKS:
            yield block
            assert next(given) == block

    with CopySpool(tmp_path, 1 << 30) as spool:
        given = spool.blocks()
        spool.fill(blocks(), "public.t")
        assert list(given) == []
        assert spool.stored_bytes == 0


def test_nothing_is_returned_after_filling_was_aborted(tmp_path: Path) -> None:
    def blocks() -> Iterator[CopyBlock]:
        yield from BLOCKS
        raise BrokenOff

    with CopySpool(tmp_path, 1 << 30) as spool:
        with pytest.raises(BrokenOff):
            spool.fill(blocks(), "public.t")
        assert list(spool.blocks()) == []


def test_lines_over_the_bound_are_refused_with_the_table_named(tmp_path: Path) -> None:
    refused = pytest.raises(TableTooLarge, match=r"public\.t .*copy\.spool_bytes")
    with CopySpool(tmp_path, len(LONG.lines)) as spool, refused:
        spool.fill([LONG, BLOCKS[0]], "public.t")
