"""The progress of a pipeline, in the state folder: `pipeline-<reader>.json`.

`cdcctl status`, `cdcctl table resume|recopy` and the demonstration read it. It is replaced as a whole and never synced,
and delivery does not depend on it.
"""

import os

from tidemark.io.host.disk import writing
from tidemark.io.state.state_folder import StateFolder


def record_progress(folder: StateFolder, reader: str, content: bytes) -> None:
    """Replace the progress of a reader's pipeline."""
    file = folder.progress(reader)
    written = file.with_suffix(".new")
    with writing(file):
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, folder.file_mode)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(content)
        written.rename(file)


def recorded_progress(folder: StateFolder, reader: str) -> bytes:
    """Return the last progress of a reader's pipeline; empty if there is none."""
    try:
        return folder.progress(reader).read_bytes()
    except FileNotFoundError:
        return b""
