"""The names of a lake's folders, from the names of databases, schemas and tables."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.pipeline.lake.folders import folder_name

NAME_BYTES_MAX = 63  # NAMEDATALEN - 1
FOLDER_BYTES_MAX = 240  # a file system permits 255; an OID may follow
NAMES = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=NAME_BYTES_MAX)


@pytest.mark.feature("L13")
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("orders", "orders"),
        ("Orders_2024.v-1", "Orders_2024.v-1"),
        ("a/b", "a_b"),
        ("100%", "100_"),
        ("..", "x._"),
        (".", "x_"),
        ("_delta_log", "x_delta_log"),
        ("--help", "x--help"),
        ('o\'rder\n"s" ', "o_rder__s__"),
        ("x" * NAME_BYTES_MAX, "x" * NAME_BYTES_MAX),
        ("заказы", "xn--80aatcn8h"),
        ("Заказы", "xn--80aatcn8h"),
        ("cafe\u0301", "xn--caf-dma"),
        ("café", "xn--caf-dma"),
        ("注文/表", "xn--_-5h6by1twy4a"),
        ("\u212a", "k"),  # the sign for kelvins
        ("app\udcff", "xn--app-gl8p"),  # a byte that is invalid in its encoding
    ],
)
def test_a_folder_is_named_as_the_table_in_ascii(name: str, folder: str) -> None:
    assert folder_name(name) == folder


@pytest.mark.feature("L13")
@given(NAMES)
def test_every_name_gives_a_visible_portable_folder(name: str) -> None:
    name = name.encode("utf-8", "surrogatepass")[:NAME_BYTES_MAX].decode("utf-8", "ignore") or "a"
    folder = folder_name(name)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", folder)
    assert not folder.endswith(".")
    assert len(folder) <= FOLDER_BYTES_MAX
