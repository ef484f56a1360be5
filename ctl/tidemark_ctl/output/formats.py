"""The output formats of `cdcctl decode` and `cdcctl tail`; `printing` has their printers."""

from enum import Enum


class Format(Enum):
    """An output format."""

    JSONL = "jsonl"
    DEBEZIUM = "debezium"
    TEST_DECODING = "test_decoding"
    ARROW = "arrow"
    NULL = "null"


FORMATS = tuple(form.value for form in Format)
