"""The identity of a transform: by it a start recognises that the transforms of a table are not those of before.

It is a hash of the class, with its code if it is the application's, and of the arguments of its constructor. What they
mean beyond that, such as the contents of a file that a function reads, is not recognised.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping

from tidemark.transforms.value_description import NotDescribed, ValueDescription

CHARACTERS = 16
UNKNOWN = "?"  # how the identity begins of what may be another thing in each process


def identity_of(kind: type, arguments: Mapping[str, object]) -> str:
    """Return the identity of an object that a class makes of these arguments."""
    description = ValueDescription(kind.__module__)
    try:
        given = [json.dumps([name, description.of(value)], sort_keys=True) for name, value in sorted(arguments.items())]
        return joined_identity([json.dumps(description.of_class(kind)), *given])
    except NotDescribed:
        return UNKNOWN + joined_identity([kind.__module__, kind.__qualname__])


def joined_identity(parts: Iterable[str]) -> str:
    """Return one identity of several in an order; "" if there are none."""
    given = list(parts)
    if not given:
        return ""
    joined = hashlib.sha256(json.dumps(given).encode()).hexdigest()[:CHARACTERS]
    return UNKNOWN + joined if any(part.startswith(UNKNOWN) for part in given) else joined


def is_same(identity: str, before: str) -> bool:
    """Return whether two identities, of two processes, are certainly those of the same transforms."""
    return identity == before and not identity.startswith(UNKNOWN)
