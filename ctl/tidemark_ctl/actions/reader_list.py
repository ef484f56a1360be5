"""`cdcctl reader list`: the registered readers of the outbox and their positions."""

from pathlib import Path

from tidemark.model.commit_time import USECS_PER_SECOND
from tidemark_ctl.requests.reader_place import ReaderPlace, now_us
from tidemark_ctl.views.reader_tree import held_tree
from tidemark_ctl.views.render import show


def list_readers(
    state: Path | None, server: str | None, token_file: Path | None, tls_roots: Path | None, *, as_json: bool
) -> None:
    """Run the command."""
    with ReaderPlace(state, server, token_file, tls_roots).opened(read_only=True) as register:
        found = register.known(now_us())
    tree = {
        name: {
            "kind": known.reader.kind.value,
            "held": known.reader.applied,
            "replayable": known.reader.replayable,
            "behind": found.head - known.reader.applied,
            "lag_s": round(known.lag_us / USECS_PER_SECOND, 1),
            "required": known.reader.is_required,
            **held_tree(known.reader, known.held_bytes),
        }
        for name, known in found.readers.items()
    }
    show({"readers": tree, "damaged": list(found.damaged)}, as_json=as_json)
