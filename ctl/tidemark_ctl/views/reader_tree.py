"""How commands display what a reader of the outbox holds, or that it has lapsed."""

from tidemark.model.lsn import format_lsn
from tidemark.wire.state.readers import Reader
from tidemark_ctl.views.archive_tree import usecs_text
from tidemark_ctl.views.render import Tree


def held_tree(reader: Reader, held: int | None) -> dict[str, Tree]:
    """Return the bytes that only this reader needs; `held` is None for a required reader, which never lapses."""
    if not reader.is_lapsed:
        return {} if held is None else {"held_bytes": held}
    since = f"at {usecs_text(reader.lapsed_at_us)}: values from {reader.trimmable + 1} on were trimmed"
    return {"lapsed": f"{since}, commits from {format_lsn(reader.lapsed_lsn)} on"}
