"""Heartbeats: messages by which a consumer sees that a capture without changes runs (U18, `deliver.heartbeat_s`).

They are no WAL, so they need no write to the node. Each has a separate position, behind all that is decoded.
None comes while nothing is heard from the node: a connected one reports its position every few seconds, also without
WAL. While an archive is read, its WAL is all that is heard.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

from tidemark.decode.groups.group_builder import ITEM_BYTES
from tidemark.model.change import ChangeGroup, LogicalMessage
from tidemark.model.lsn import Oid, Xid
from tidemark.model.message_prefix import HEARTBEAT_PREFIX
from tidemark.model.position import Position


def with_heartbeats(idle: ChangeGroup, after: Position, databases: Sequence[Oid], wall_us: int) -> ChangeGroup | None:
    """Return a group without changes with a heartbeat for each database, at positions greater than `after`.

    None without databases, and while decoding has not reached `after`: of its transaction more may follow.
    """
    here = idle.last.position
    if not databases or (here.timeline, here.commit_lsn) < (after.timeline, after.commit_lsn):
        return None
    first = max(here, replace(after, ordinal=after.ordinal + 1))
    content = json.dumps({"time_us": wall_us}).encode()
    beats = [
        LogicalMessage(
            position=replace(first, ordinal=first.ordinal + number),
            lsn=here.commit_lsn,
            database=database,
            xid=Xid(0),
            transactional=False,
            prefix=HEARTBEAT_PREFIX,
            content=content,
        )
        for number, database in enumerate(databases)
    ]
    last = replace(idle.last, position=beats[-1].position)
    return replace(idle, first=first, last=last, items=beats, byte_count=len(beats) * (len(content) + ITEM_BYTES))
