"""Extended statistics: invalid or truncated values are refused by name. The oracle tests their text."""

import struct

import pytest

from tidemark.decode.datum.varlena import BadDatum
from tidemark.decode.types.codec import Codec
from tidemark.decode.types.families.statistics import DependenciesCodec, DistinctCodec

DISTINCT = struct.pack("<IIIdi2hdi3h", 0xA352BFA4, 1, 2, 7.9, 2, 1, 2, -1.0, 3, 1, 2, 3)
DEPENDENCIES = struct.pack("<IIIdh2hdh3h", 0xB4549A2C, 1, 2, 0.5, 2, 1, 2, 1.0, 3, 1, 3, 2)


@pytest.mark.parametrize(
    ("codec", "payload", "text"),
    [
        (DistinctCodec(), DISTINCT, '{"1, 2": 7, "1, 2, 3": -1}'),
        (DependenciesCodec(), DEPENDENCIES, '{"1 => 2": 0.500000, "1, 3 => 2": 1.000000}'),
    ],
)
def test_statistics_are_printed_group_by_group_and_only_if_complete(codec: Codec, payload: bytes, text: str) -> None:
    assert codec.text(payload) == text
    for length in range(len(payload)):
        with pytest.raises(BadDatum):
            codec.text(payload[:length])
    with pytest.raises(BadDatum, match="no statistics"):
        codec.text(bytes(4) + payload[4:])
    if isinstance(codec, DistinctCodec):
        with pytest.raises(BadDatum, match="nan different values"):
            codec.text(struct.pack("<IIIdi", 0xA352BFA4, 1, 1, float("nan"), 0))
