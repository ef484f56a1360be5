"""Counts and numbers of changes (P11): the same wherever groups are cut, and wherever a restart goes on."""

import json
from collections.abc import Sequence

from tests.support.json_lines import lines_in
from tests.unit.decoder.test_grouping import DIALECTS, groups_of
from tests.unit.decoder.test_grouping_restart import places, stream
from tidemark.decode.grouping import Grouper
from tidemark.decode.render.jsonl import JsonLines
from tidemark.model.change import TABLE_ORDINAL, ChangeBatch, ChangeGroup

Numbers = dict[tuple[int, int], int]  # by commit LSN and ordinal
Counts = dict[int, dict[str, int]]  # by xid


def numbers(groups: Sequence[ChangeGroup]) -> Numbers:
    found: Numbers = {}
    for group in groups:
        for item in group.items:
            if isinstance(item, ChangeBatch):
                columns = (item.rows.column(name).to_pylist() for name in ("_commit_lsn", "_ordinal", TABLE_ORDINAL))
                found |= {(lsn, ordinal): number for lsn, ordinal, number in zip(*columns, strict=True)}
    return found


def counts(groups: Sequence[ChangeGroup]) -> Counts:
    ends = [end for group in groups for end in group.transactions]
    return {end.xid: {table.name: table.count for table in end.tables or ()} for end in ends}


def test_changes_are_numbered_and_counted_by_table() -> None:
    groups = groups_of(stream(), Grouper(DIALECTS, counting=True))
    told = counts(groups)
    assert told[701] == {"account": 2, "ledger": 4}
    assert told[702] == {"account": 2, "ledger": 5}, "the TRUNCATE is one of its table's"
    assert sorted(numbers(groups).values()) == [0] * 6 + [1] * 6 + [2] * 3 + [3] * 3


def test_cuts_and_restarts_anywhere_leave_numbers_and_counts_as_they_are() -> None:
    whole = groups_of(stream(), Grouper(DIALECTS, counting=True))
    for rows_max in (1, 2, 3):
        cut = groups_of(stream(), Grouper(DIALECTS, counting=True, rows_max=rows_max))
        assert (numbers(cut), counts(cut)) == (numbers(whole), counts(whole))
    for place in places(whole):
        rest = groups_of(stream(), Grouper(DIALECTS, counting=True, after=place, rows_max=2))
        assert numbers(rest).items() <= numbers(whole).items()
        assert counts(rest).items() <= counts(whole).items()


def test_what_is_not_selected_is_not_counted() -> None:
    grouper = Grouper(DIALECTS, counting=True, selected=lambda found: found.name == "ledger")
    assert set(map(str, counts(groups_of(stream(), grouper)).values())) == {"{'ledger': 4}", "{'ledger': 5}"}


def test_each_transaction_is_told_of_once_around_its_changes_however_groups_are_cut() -> None:
    for rows_max in (1, 2, 100):
        groups = groups_of(stream(), Grouper(DIALECTS, counting=True, rows_max=rows_max))
        printed = JsonLines({})
        lines = [json.loads(line) for group in groups for line in lines_in(printed.lines(group))]
        ops = "".join({"begin": "(", "end": ")"}.get(line["op"], ".") for line in lines)
        assert ops == "(......)" + "(.......)" + "(......)"
        assert [line["tables"][0]["count"] for line in lines if line["op"] == "end"] == [2, 2, 2]
        places_told = [line["position"].split(":")[1:] for line in lines if line["op"] not in ("begin", "end")]
        assert places_told == sorted(places_told)


def test_a_transaction_that_went_on_before_a_restart_is_not_begun_again() -> None:
    first = places(groups_of(stream(), Grouper(DIALECTS)))[0]
    groups = groups_of(stream(), Grouper(DIALECTS, counting=True, after=first))
    printed = JsonLines({})
    ops = [json.loads(line)["op"] for group in groups for line in lines_in(printed.lines(group))]
    assert ops[:7] == ["i"] * 5 + ["end", "begin"]


def test_nothing_is_counted_unless_it_is_asked_for() -> None:
    (group,) = groups_of(stream(), Grouper(DIALECTS))
    assert {end.tables for end in group.transactions} == {None}
    assert not any(TABLE_ORDINAL in item.rows.schema.names for item in group.items if isinstance(item, ChangeBatch))
