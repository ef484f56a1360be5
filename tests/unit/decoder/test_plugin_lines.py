"""The lines of test_decoding are the same for small transactions together and one by one."""

import pytest

from tests.support.forged.forged_records import Wal, block_of, packed_row
from tests.support.forged.groups import relation
from tests.support.oracles.plugin_lines import PluginLines
from tests.unit.decoder.test_group_builder import DIALECTS
from tests.unit.decoder.test_small_transactions import (
    ACCOUNT,
    LEDGER,
    by_blocks,
    lines_outside_kernels,
    new_wal,
    tellers,
)
from tidemark.decode.render import test_decoding as renderer
from tidemark.decode.render.test_decoding import TestDecodingRenderer
from tidemark.decode.transactions.reorder_buffer.committed_run import CommittedRun
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.model.change import LogicalMessage
from tidemark.model.relation import Relation
from tidemark.wal.rmgr import heap

BLOCKS = 2
LINES_A_TRANSACTION = 1.5  # of Python, outside the kernels, for one more of three rows; 0.7 at the time of writing


def selects_ledger(table: Relation) -> bool:
    return table.name == "ledger"


def one_by_one(stream: Wal, lines: PluginLines) -> list[str]:
    return [line for each in stream.committed for line in lines.of(each)]


def committed_in(stream: Wal) -> list[CommittedRun | CommittedTransaction]:
    return [each for each in by_blocks(stream) if not isinstance(each, LogicalMessage)]


def together(stream: Wal, lines: PluginLines) -> list[str]:
    found = committed_in(stream)
    assert sum(len(each) for each in found if isinstance(each, CommittedRun)) > 0.9 * len(stream.committed)
    assert all(len(each) > 1 for each in found if isinstance(each, CommittedRun))
    return [line for each in found for line in lines.of(each)]


def mixed(count: int) -> Wal:
    """Return transactions whose kinds of changes, and tables, alternate in different orders."""
    stream = new_wal()
    old = {"old": packed_row(-1, None), "old_flag": heap.UPDATE_CONTAINS_OLD_KEY}
    for xid in range(801, 801 + count):
        first, second = (ACCOUNT, LEDGER) if xid % 2 else (LEDGER, ACCOUNT)
        if xid % 5 != 4:
            stream.insert(xid, first, packed_row(xid, b"it's"))
        stream.update(xid, LEDGER, packed_row(xid, None), **(old if xid % 3 else {}))  # type: ignore[arg-type]
        stream.delete(xid, second, old=packed_row(xid, None), flags=heap.DELETE_CONTAINS_OLD_KEY)
        stream.insert(xid, first, packed_row(xid + 1))
        if xid % 7 == 0:
            stream.delete(xid, first)
        stream.commit(xid)
    return stream


@pytest.mark.parametrize("stream", [tellers(100), mixed(100)], ids=["open together", "one after the other"])
@pytest.mark.parametrize("selected", [lambda _: True, selects_ledger, lambda _: False], ids=["all", "one", "none"])
def test_transactions_together_have_the_lines_that_they_have_one_by_one(stream: Wal, selected: object) -> None:
    assert callable(selected)
    expected = one_by_one(stream, PluginLines(15, DIALECTS, selected=selected))
    assert together(stream, PluginLines(15, DIALECTS, selected=selected)) == expected


def test_the_lines_of_a_transaction_are_in_the_order_of_its_changes() -> None:
    lines = together(mixed(40), PluginLines(15, DIALECTS))
    at = lines.index("BEGIN 812")
    assert lines[at : at + 6] == [
        "BEGIN 812",
        "table public.ledger: INSERT: id[bigint]:812 note[text]:'it''s'",
        "table public.ledger: UPDATE: old-key: id[bigint]:-1 new-tuple: id[bigint]:812 note[text]:null",
        "table public.account: DELETE: id[bigint]:812",
        "table public.ledger: INSERT: id[bigint]:813 note[text]:'x'",
        "table public.ledger: DELETE: (no-tuple-data)",
    ]
    assert lines[at + 6] == "COMMIT 812"


def test_a_transaction_without_a_selected_row_has_no_line_among_those_that_have_some() -> None:
    stream = new_wal()
    stream.insert(799, ACCOUNT, packed_row(0))
    stream.insert(799, LEDGER, packed_row(0))
    stream.commit(799)
    for xid in range(801, 811):
        stream.insert(xid, ACCOUNT if xid % 2 else LEDGER, packed_row(xid))
        stream.commit(xid)
    printing = PluginLines(15, DIALECTS, selected=selects_ledger)
    lines = [line for each in committed_in(stream) for line in printing.of(each)]
    begins = [line for line in lines if line.startswith("BEGIN")]
    assert begins == [f"BEGIN {xid}" for xid in (799, *range(802, 811, 2))]
    assert len(lines) == 3 * 6


@pytest.mark.parametrize("name", ["CELLS_MAX", "EXPANDED_BYTES_MAX"])
def test_rows_that_exceed_the_cells_located_at_once_are_printed_in_parts(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = mixed(60)
    expected = one_by_one(stream, PluginLines(15, DIALECTS))
    monkeypatch.setattr(renderer, name, 8)
    assert together(stream, PluginLines(15, DIALECTS)) == expected


def test_a_small_transaction_more_costs_hardly_a_line_of_python() -> None:
    few, many = (steps(tellers(count)) for count in (500, 1500))
    assert many - few < LINES_A_TRANSACTION * 1000, (few, many)


def steps(stream: Wal) -> int:
    """Count the lines of Python that printing transactions takes, from blocks on."""
    size = -(-len(stream.raws) // BLOCKS)
    blocks = [block_of(stream.raws[begin : begin + size]) for begin in range(0, len(stream.raws), size)]
    decoder, printing = Wal(relation(), relation("ledger", LEDGER)).decoder, TestDecodingRenderer(15, DIALECTS)
    printed = 0

    def work() -> None:
        nonlocal printed
        for block in blocks:
            for found in decoder.decode_runs(block):
                is_run = isinstance(found, CommittedRun)
                printed += sum(map(len, printing.run(found) if is_run else printing.transaction(found)))  # type: ignore[arg-type]

    taken = lines_outside_kernels(work)
    assert printed > 100 * len(stream.committed)
    return taken
