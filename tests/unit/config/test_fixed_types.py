"""The forms of values are fixed by `init`."""

import json

import pytest

from tidemark.io.process.config import TypesConfig
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import FullXid, Lsn, TimelineId
from tidemark.model.mapping import Decimals, TypeMapping
from tidemark.runtime.capture.capture_settings import OtherTypes, check_types
from tidemark.wire.json_form import JsonForm
from tidemark.wire.state.values import Beginning

BEGINNING = Beginning(TimelineId(1), Lsn(8), FullXid(3), {})


def test_other_forms_than_those_of_the_state_are_refused_by_their_key() -> None:
    types = TypesConfig(decimals=Decimals.STRING)
    with pytest.raises(
        OtherTypes, match=r"types\.decimals is string in the configuration, and precise since"
    ) as raised:
        check_types(types, BEGINNING)
    assert raised.value.exit_code is ExitCode.CONFIG


def test_the_forms_of_the_state_are_accepted() -> None:
    check_types(TypesConfig(), BEGINNING)


def test_a_beginning_keeps_its_forms_and_one_of_an_earlier_version_has_the_defaults() -> None:
    form: JsonForm[Beginning] = JsonForm(Beginning)
    kept = Beginning(TimelineId(1), Lsn(8), FullXid(3), {}, types=TypeMapping(decimals=Decimals.DOUBLE))
    stored = form.write(kept)
    assert form.read(stored) == kept
    older = {key: value for key, value in json.loads(stored).items() if key != "types"}
    assert form.read(json.dumps(older).encode()).types == TypeMapping()
