"""The text of a file in the log of offsets of Spark's checkpoint."""

import pytest

from tidemark.model.errors import Disposition
from tidemark.pipeline.driver.offset_log import UnreadableOffsets, parse_offsets

SETTINGS = '{"batchWatermarkMs":0,"batchTimestampMs":1790000000000,"conf":{}}'
OFFSET = '{"outbox": "0a0b", "sequence": 17}'


def test_the_offset_of_the_only_source_is_the_end_of_the_batch() -> None:
    assert parse_offsets(f"v1\n{SETTINGS}\n{OFFSET}", "offsets/3") == {"outbox": "0a0b", "sequence": 17}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "offsets/3 has 0 lines after ''"),
        (f"v2\n{SETTINGS}\n{OFFSET}", "offsets/3 has 2 lines after 'v2', not two after 'v1'"),
        (f"v1\n{SETTINGS}\n{OFFSET}\n{OFFSET}", "offsets/3 has 3 lines"),
        (f"v1\n{SETTINGS}\n-", "offsets/3 has no offset of an outbox: '-'"),
        (f"v1\n{SETTINGS}\n[]", "no offset of an outbox"),
        (f'v1\n{SETTINGS}\n{{"sequence": 17}}', "no offset of an outbox"),
        (f'v1\n{SETTINGS}\n{{"outbox": "0a0b", "sequence": "x"}}', "no offset of an outbox"),
    ],
)
def test_any_other_text_is_named_with_its_file_and_the_remedy(text: str, said: str) -> None:
    with pytest.raises(UnreadableOffsets, match="offsets/3") as raised:
        parse_offsets(text, "offsets/3")
    assert said in str(raised.value)
    assert "delete Spark's checkpoint" in raised.value.hint
    assert raised.value.disposition is Disposition.HALT
