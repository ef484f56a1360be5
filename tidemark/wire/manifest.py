"""The manifest in the spool beside the copied catalog history: from both, a lost state folder can be rebuilt.

    SPOOL/history/manifest                       this, in the envelope of the state's values
    SPOOL/history/base-…, SPOOL/history/journal-…  the files that its index names

Its values are of one moment, and the files reach at least as far. The journal that was being written is copied as far
as it was durable: decoding from `start` writes the rest again.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.model.lsn import Oid
from tidemark.model.position import Pointer, Sequence
from tidemark.wire.state.copy_progress import CopyProgress, Fingerprint
from tidemark.wire.state.history_index import HistoryIndex, JournalMark
from tidemark.wire.state.key import DamagePolicy, Key
from tidemark.wire.state.values import Beginning, Followed, Identity, Term


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """Progress of the first copy of one table."""

    database: Oid
    relation: Oid
    progress: CopyProgress


@dataclass(frozen=True, slots=True)
class Manifest:
    """A state without its outbox."""

    identity: Identity
    beginning: Beginning
    history: HistoryIndex
    journal: JournalMark
    start: Pointer  # confirmed by every reader: a rebuilt state delivers everything after it again
    head: Sequence  # the greatest sequence in the outbox
    term: Term | None
    fingerprint: Fingerprint | None
    tables: tuple[CopiedTable, ...]
    copied_at_us: int  # wall clock, for people
    followed: Followed | None = None  # of a follower

    @property
    def copies(self) -> Mapping[tuple[Oid, Oid], CopyProgress]:
        """The first copies by database and relation."""
        return {(table.database, table.relation): table.progress for table in self.tables}


MANIFEST = Key("manifest", Manifest, DamagePolicy.HALT)
