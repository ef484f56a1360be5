"""All inputs of the fuzzer's corpus, and damaged valid inputs, cause no bug."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.forged.byte_targets.small_base import CORPUS
from tests.support.forged.byte_targets.table import TARGETS, corpus

CORPUS_BYTES_MAX = 1 << 20


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_in_the_corpus_fails(name: str) -> None:
    target = TARGETS[name]
    assert target.seeds
    for reported, data in {**target.seeds, **corpus(name)}.items():
        try:
            target.run(data)
        except Exception as error:
            raise AssertionError(f"{name}: {reported}") from error


@st.composite
def damaged(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """Draw a valid input with bytes overwritten, truncated, removed or repeated."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        size = draw(st.integers(1, 16))
        match draw(st.sampled_from(["overwrite", "flip", "cut", "remove", "repeat", "zero"])):
            case "overwrite":
                data[at : at + size] = draw(st.binary(min_size=size, max_size=size))
            case "flip":
                data[at : at + 1] = bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) if data else b""
            case "cut":
                del data[at:]
            case "remove":
                del data[at : at + size]
            case "repeat":
                data[at:at] = data[at : at + size]
            case "zero":
                data[at : at + size] = bytes(size)
    return bytes(data)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=examples(60))
@given(st.data())
def test_damage_to_sound_input_is_named_or_makes_no_difference(name: str, data: st.DataObject) -> None:
    target = TARGETS[name]
    target.run(data.draw(damaged(list(target.seeds.values()))))


def test_the_corpus_is_small_and_of_the_targets_that_there_are() -> None:
    assert {path.stem for path in CORPUS.glob("*.txt")} <= TARGETS.keys()
    assert sum(path.stat().st_size for path in CORPUS.iterdir()) < CORPUS_BYTES_MAX
