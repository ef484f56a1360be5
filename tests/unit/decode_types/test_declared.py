"""Declared types of columns, beyond those that a server of every major accepts (`first_copy/test_descriptions`)."""

from dataclasses import replace

import pytest

from tests.support.lakes.scripted_table import column
from tidemark.decode.types.declared import declared_type


@pytest.mark.parametrize(
    ("typmod", "declared"),
    [(-1, "numeric"), ((8 << 16 | 0x7FE) + 4, "numeric(8,-2)"), ((1000 << 16) + 4, "numeric(1000,0)")],
)
def test_a_numeric_may_round_to_tens(typmod: int, declared: str) -> None:
    assert declared_type(replace(column(1, "a", "numeric"), typmod=typmod)) == declared
