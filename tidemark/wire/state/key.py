"""A key of the state: its name, the form of its value, its damage policy and its order.

Values are JSON inside the envelope of `tidemark.wire.envelope`: few, small, and readable by a person who inspects a
state folder. The outbox's values have another form (`tidemark.wire.outbox`).
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Generic, TypeVar

from tidemark.model.errors import InternalError
from tidemark.wire.envelope import DamagedValue, seal, unseal
from tidemark.wire.json_form import NO_NAMES, JsonForm, JsonMismatch

FORMAT_VERSION = 1


class DamagePolicy(Enum):
    """What happens if a key's value fails its checksum; never a silent restart "from the oldest"."""

    HALT = "halt"  # StateError naming the key: only an operator can decide
    DERIVE = "derive"  # read from the values that it describes, which contain it too; HALT if there are none
    HOLD = "hold"  # treated as "still needed": nothing is trimmed or confirmed until it is written again
    REBUILD = "rebuild"  # rebuilt from the files that it describes
    FORGET = "forget"  # treated as empty: it is only shown to people


ValueT = TypeVar("ValueT")


class Key(Generic[ValueT]):
    """A key of the state: its name, the form of its value, its damage policy, and its order (it must not move back)."""

    def __init__(
        self,
        name: str,
        shape: type[ValueT],
        policy: DamagePolicy,
        *,
        moves_back: Callable[[ValueT, ValueT], bool] | None = None,
        earlier_names: Mapping[str, str] = NO_NAMES,
    ) -> None:
        """`moves_back` compares the old value with the new one; None: the value has no order.

        `earlier_names`: of fields in values that an earlier version stored, with the present ones.
        """
        self.name = name
        self.policy = policy
        self.moves_back = moves_back
        self._form: JsonForm[ValueT] = JsonForm(shape, earlier_names)
        self._latest: tuple[bytes, ValueT] | None = None  # values are immutable: the same bytes are decoded once

    def encode(self, value: ValueT) -> bytes:
        """Return the stored bytes of a value that replaces none."""
        stored = seal(self._form.write(value), FORMAT_VERSION)
        self._latest = stored, value
        return stored

    def encode_over(self, replaced: bytes | None, value: ValueT) -> bytes:
        """Return the stored bytes of a value that replaces `replaced`; raise `InternalError` if it would move back."""
        if replaced is not None and self.moves_back is not None:
            self._check_order(replaced, value, self.moves_back)
        return self.encode(value)

    def _check_order(self, replaced: bytes, value: ValueT, moves_back: Callable[[ValueT, ValueT], bool]) -> None:
        try:
            before = self.decode(replaced)
        except DamagedValue:
            return  # the key's policy has determined the new value
        if moves_back(before, value):
            raise InternalError(f"{self.name} would move back from {before} to {value}")

    def decode(self, stored: bytes) -> ValueT:
        """Return the value; raise `DamagedValue` if the bytes are not the output of `encode`."""
        latest = self._latest
        if latest is not None and latest[0] == stored:
            return latest[1]
        payload = unseal(self.name, stored, FORMAT_VERSION)
        try:
            value = self._form.read(payload)
        except JsonMismatch as error:
            hint = "its checksum is correct, so another version wrote it: run that version, or create a new state"
            raise DamagedValue(self.name, f"not of the form that this version reads: {error}", hint=hint) from error
        self._latest = stored, value
        return value
