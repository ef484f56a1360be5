"""A requested copy's steps, and table names as operators write them."""

import pytest

from tidemark.model.lsn import Lsn, Oid
from tidemark.model.table_name import InvalidTableName, TableName
from tidemark.wire.control import BadRequest, Json, decode_line, encode_line
from tidemark.wire.recopies import (
    RecopyStep,
    RequestedTable,
    decode_generations,
    decode_request,
    encode_generations,
    encode_request,
    step_of,
)
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress, Recopy

KEY = (Oid(5), Oid(16385))


def wire(content: dict[str, Json]) -> dict[str, Json]:
    return decode_line(encode_line(content))


@pytest.mark.parametrize(
    ("is_queued", "copy", "step"),
    [
        (False, None, RecopyStep.REQUESTED),
        (False, CopyProgress(CopyPhase.DONE, 3), RecopyStep.REQUESTED),
        (False, CopyProgress(CopyPhase.COPYING, 3), RecopyStep.REQUESTED),
        (False, CopyProgress(CopyPhase.DONE, 4), RecopyStep.DONE),
        (True, CopyProgress(CopyPhase.WAITING, 3), RecopyStep.QUEUED),
        (True, CopyProgress(CopyPhase.COPYING, 4), RecopyStep.COPYING),
        (True, CopyProgress(CopyPhase.DONE, 4), RecopyStep.DONE),
        (True, CopyProgress(CopyPhase.DONE, 3), RecopyStep.ENDED),
        (True, CopyProgress(CopyPhase.LEFT, 4), RecopyStep.ENDED),
        (True, None, RecopyStep.ENDED),
    ],
)
def test_only_a_later_generation_completes_a_request(
    copy: CopyProgress | None, step: RecopyStep, *, is_queued: bool
) -> None:
    request = Recopy("postgres.public.account", 0, Lsn(7), 3, is_queued=is_queued)
    assert step_of(request, copy) is step
    assert step.is_over is (step in (RecopyStep.DONE, RecopyStep.ENDED))


def test_a_request_and_its_response_pass_the_control_socket_unchanged() -> None:
    requested = [RequestedTable(KEY, 'postgres.public."a.b"')]
    assert decode_request(wire(encode_request(requested, Lsn(1 << 40)))) == (requested, Lsn(1 << 40))
    assert decode_generations(wire(encode_generations({KEY: 2}))) == {KEY: 2}


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"tables": "x", "after_lsn": "0/1"},
        {"tables": [[5, "16385", "name"]], "after_lsn": "0/1"},
        {"tables": [[5, 16385]], "after_lsn": "0/1"},
        {"tables": [], "after_lsn": None},
    ],
)
def test_a_request_of_another_form_is_refused(content: dict[str, Json]) -> None:
    with pytest.raises(BadRequest):
        decode_request(content)
    with pytest.raises(BadRequest):
        decode_generations(content)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("account", TableName("public", "account")),
        ("App.Account", TableName("App", "Account")),
        ("db.app.account", TableName("app", "account", "db")),
        ('app."a.b"', TableName("app", "a.b")),
        ('"say ""so"""', TableName("public", 'say "so"')),
    ],
)
def test_a_table_name_is_read_as_it_is_written(text: str, name: TableName) -> None:
    assert TableName.parse(text) == name
    assert TableName.parse(str(name)) == name


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", "a.b.c.d", '"a', 'a"b', '""', 'a."b"c'])
def test_text_that_is_not_a_table_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidTableName):
        TableName.parse(text)
