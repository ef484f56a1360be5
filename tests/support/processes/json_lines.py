"""Parses JSON lines: those of the renderer, and those that the `jsonl` consumer has written."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support.processes.written_lines import complete_lines
from tidemark.wire.control import Json


def lines_of(path: Path) -> list[Mapping[str, Json]]:
    """Return the complete lines: a kill may cut off the last one, which is then written again."""
    return [json.loads(line) for line in complete_lines(path) if line.startswith("{")]


def lines_in(blocks: Iterable[memoryview]) -> list[bytes]:
    """Return the lines in a rendered block."""
    return [line for block in blocks for line in bytes(block).splitlines()]
