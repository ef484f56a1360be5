"""The kept form of a transaction map, with the catalog changes of the mapped WAL.

version and CRC-32C (`envelope`), length of the map, the map as JSON, journal entries (`decode.catalog.history`)
"""

import struct
from dataclasses import dataclass

from tidemark.model.transaction_map import TransactionMap
from tidemark.wire.envelope import DamagedValue, seal, unseal
from tidemark.wire.json_form import JsonForm, JsonMismatch

MAP_VERSION = 2
_LENGTH = struct.Struct(">I")
_FORM: JsonForm[TransactionMap] = JsonForm(TransactionMap)


@dataclass(frozen=True, slots=True)
class KeptMap:
    """A map, and the journal entries from its start to its last cut or farther."""

    transactions: TransactionMap
    journal: bytes = b""


def dump_map(kept: KeptMap) -> bytes:
    """Return the bytes of a map."""
    text = _FORM.write(kept.transactions)
    return seal(b"".join([_LENGTH.pack(len(text)), text, kept.journal]), MAP_VERSION)


def load_map(stored: bytes, where: str) -> KeptMap:
    """Return the map in `stored`; raise `DamagedValue` or `NewerValue`, which name `where`."""
    payload = unseal(where, stored, MAP_VERSION)
    try:
        (length,) = _LENGTH.unpack_from(payload)
        return KeptMap(_FORM.read(payload[_LENGTH.size : _LENGTH.size + length]), payload[_LENGTH.size + length :])
    except (struct.error, JsonMismatch) as error:
        raise DamagedValue(where, str(error)) from error
