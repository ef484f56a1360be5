"""Short queries to the node over a replication connection: the end of its WAL, and whether it has older WAL."""

from contextlib import closing

from tidemark.io.node.replication import NodeIdentity, WalStream
from tidemark.model.errors import NodeUnreachable, WalGap
from tidemark.model.lsn import Lsn, SystemIdentifier, format_lsn
from tidemark.wal.segments import first_page_lsn

FIRST_MESSAGE_S = 10.0  # a walsender that has nothing to send reports that at once


def node_identity(dsn: str, system_identifier: SystemIdentifier) -> NodeIdentity:
    """Return the node's identity, timeline and end of WAL; raise if the node does not answer."""
    with closing(WalStream(dsn)) as stream:
        return stream.identify(system_identifier)


def streams_from(dsn: str, system_identifier: SystemIdentifier, lsn: Lsn) -> bool:
    """Return whether the node sends its WAL from `lsn`; false if it has removed that."""
    start_lsn = first_page_lsn(lsn)
    with closing(WalStream(dsn)) as stream:
        here = stream.identify(system_identifier)
        history = stream.timeline_history(here.timeline)
        try:
            if stream.start(start_lsn, history.timeline_at(start_lsn)) is not None:
                return True  # the timeline ends exactly there
            # NB: an error for removed WAL replaces the first message, which otherwise is WAL, or that there is none.
            if stream.read(FIRST_MESSAGE_S) is None:
                raise NodeUnreachable(f"{stream.where} sends no WAL from {format_lsn(start_lsn)} on")
        except WalGap:
            return False
    return True
