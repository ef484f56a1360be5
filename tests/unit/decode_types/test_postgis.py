"""The values that PostGIS 3.3.2 stored and printed (recorded by tests/integration/types/test_types_postgis.py)."""

import json
from pathlib import Path

import pytest

from tests.support.forged import tuple_forms as forms
from tests.support.samples.extension_samples import POSTGIS_SAMPLES
from tidemark.decode.types.registry import codec_for

RECORDED: dict[str, tuple[str, str]] = json.loads((Path(__file__).parent / "postgis.json").read_text())


def test_every_sample_is_recorded() -> None:
    assert list(RECORDED) == POSTGIS_SAMPLES["geometry"]


@pytest.mark.feature("P12")
@pytest.mark.parametrize("name", ["geometry", "geography"])  # one form
@pytest.mark.parametrize("sample", POSTGIS_SAMPLES["geometry"])
def test_a_geometry_prints_as_postgis_printed_it(sample: str, name: str) -> None:
    stored, text = RECORDED[sample]
    codec = codec_for(forms.BY_NAME[name])
    assert codec.text(bytes.fromhex(stored)) == text
    assert codec.arrow_value(bytes.fromhex(stored)) == codec.parse_text(text)


def test_collections_of_any_depth_print() -> None:
    depth = 5000
    stored = bytes(4) + b"\7\0\0\0\1\0\0\0" * depth + b"\1\0\0\0\0\0\0\0"
    assert codec_for(forms.BY_NAME["geometry"]).text(stored).startswith("0107000000010000000107")
