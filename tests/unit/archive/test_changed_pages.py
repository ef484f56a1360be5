"""Pages that WAL has changed, in bounded memory; and where the chunks of TOASTed values are."""

from pathlib import Path

import pytest

from tidemark.io.backup.changed_pages import PageCache, ScratchFailed
from tidemark.io.backup.chunk_index import ChunkIndex
from tidemark.model.lsn import BlockNumber, Oid

PAGES = 40


def page(number: int) -> bytearray:
    return bytearray(number.to_bytes(2, "little") * 4096)


def backed_up(count: int) -> list[tuple[BlockNumber, bytes]]:
    return [(BlockNumber(number), bytes(page(1000 + number))) for number in range(count)]


@pytest.mark.parametrize("pages_max", [1, 3, 100])
def test_pages_of_several_files_are_found_beyond_the_memory(tmp_path: Path, pages_max: int) -> None:
    cache = PageCache(tmp_path, pages_max)
    first, second = cache.new_file(), cache.new_file()
    for number in range(0, PAGES, 2):
        first.put(BlockNumber(number), page(number))
        second.put(BlockNumber(number + 1), page(number + 1))
    for number in range(0, PAGES, 2):
        changed = first.get(BlockNumber(number))
        assert changed == page(number)
        changed[0:2] = b"ok"
    evens = range(0, PAGES, 2)
    assert [first.get(BlockNumber(number)) for number in evens] == [
        bytearray(b"ok") + page(number)[2:] for number in evens
    ]
    assert [first.get(BlockNumber(number)) for number in range(1, PAGES, 2)] == [None] * (PAGES // 2)
    assert [second.get(BlockNumber(number)) for number in range(1, PAGES, 2)] == [page(n) for n in range(1, PAGES, 2)]
    assert len(list(tmp_path.iterdir())) == (0 if pages_max == 100 else 2)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.iterdir())


def test_changed_pages_come_in_the_place_of_those_of_the_backup(tmp_path: Path) -> None:
    pages = PageCache(tmp_path).new_file()
    for number in (0, 3, 12):
        pages.put(BlockNumber(number), page(number))
    found = [(block, content[0] + 256 * content[1]) for block, content in pages.over(iter(backed_up(5)))]
    assert found == [(0, 0), (1, 1001), (2, 1002), (3, 3), (4, 1004), (12, 12)]


def test_a_truncated_file_has_no_later_page_unless_it_was_written_again(tmp_path: Path) -> None:
    pages = PageCache(tmp_path).new_file()
    for number in (0, 9, 11):
        pages.put(BlockNumber(number), page(number))
    pages.truncate(10)
    pages.truncate(2)
    pages.put(BlockNumber(3), page(3))
    pages.truncate(30)
    assert [block for block, _ in pages.over(iter(backed_up(20)))] == [0, 1, 3]
    assert not pages.keeps(BlockNumber(2))
    assert not pages.is_created


def test_a_created_file_has_nothing_of_the_backup(tmp_path: Path) -> None:
    pages = PageCache(tmp_path).new_file()
    pages.put(BlockNumber(1), page(1))
    pages.create()
    pages.put(BlockNumber(2), page(2))
    assert [block for block, _ in pages.over(iter(backed_up(20)))] == [2]
    assert pages.is_created


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    pages = PageCache(tmp_path / "gone", 1).new_file()
    pages.put(BlockNumber(1), page(1))
    with pytest.raises(ScratchFailed, match=r"cannot use .*gone/pages-1: No such file"):
        pages.put(BlockNumber(2), page(2))


@pytest.mark.parametrize("entries_max", [1, 7, 1000])
def test_the_chunks_of_a_value_are_found_in_order_wherever_they_were(tmp_path: Path, entries_max: int) -> None:
    index = ChunkIndex(tmp_path, "1", entries_max)
    values = (Oid(5), Oid(4_294_967_295), Oid(1))
    for number in (2, 0, 1):
        for value in values:
            index.add(value, number, BlockNumber(4_000_000_000 + number), 291 - number)
    for value in values:
        assert index.places(value) == [(n, 4_000_000_000 + n, 291 - n) for n in range(3)]
    assert index.places(Oid(6)) == []
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.iterdir())
