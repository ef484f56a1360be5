"""Values of the state in a form that this version does not read."""

import pytest

from tidemark.wire.envelope import DamagedValue, seal
from tidemark.wire.state.key import FORMAT_VERSION
from tidemark.wire.state.state_keys import READER


def test_a_value_of_another_version_is_not_reported_as_damage_by_a_disk() -> None:
    stored = seal(b'{"held": 1, "replayable": 1, "confirmed_at_us": 0}', FORMAT_VERSION)
    with pytest.raises(DamagedValue, match=r"reader: not of the form .*`applied`") as other_version:
        READER.decode(stored)
    assert "another version" in other_version.value.hint
    with pytest.raises(DamagedValue, match="checksum mismatch") as damaged:
        READER.decode(stored[:-1] + b" ")
    assert "a disk" in damaged.value.hint
