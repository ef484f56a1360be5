"""All targets by name, and the corpus: the inputs that fuzzing found, one file a target, one input a line.

tests/corpus/NAME.txt     a name, and the input: base64 of the zlib-compressed bytes
"""

import base64
import zlib
from collections.abc import Mapping

from tests.support.forged.byte_targets import backups, catalogs, framing, messages, records, segments, stored, values
from tests.support.forged.byte_targets.small_base import CORPUS
from tests.support.forged.byte_targets.target import ByteTarget

TARGETS: Mapping[str, ByteTarget] = {
    target.name: target
    for target in (
        framing.TARGET,
        *records.TARGETS,
        *values.TARGETS,
        *catalogs.TARGETS,
        *stored.TARGETS,
        *messages.TARGETS,
        *segments.TARGETS,
        *backups.TARGETS,
    )
}


def corpus(target: str) -> dict[str, bytes]:
    """Return the corpus of a target, without seeds."""
    path = CORPUS / f"{target}.txt"
    if not path.exists():
        return {}
    lines = (line.partition(" ") for line in path.read_text().splitlines())
    return {name: zlib.decompress(base64.b64decode(packed)) for name, _, packed in lines}


def keep(target: str, inputs: Mapping[str, bytes]) -> None:
    """Write the corpus of a target, without seeds."""
    packed = {name: base64.b64encode(zlib.compress(data, 9)).decode() for name, data in inputs.items()}
    lines = [f"{name} {text}\n" for name, text in sorted(packed.items())]
    (CORPUS / f"{target}.txt").write_text("".join(lines))
