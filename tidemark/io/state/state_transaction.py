"""The state inside one LMDB transaction: stage, epoch, history and copies, read and changed together.

`StoredValues` has the values by key, `OutboxTransaction` the outbox, its readers and the positions.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from tidemark.io.state.confirmed_file import TakenConfirmation, read_confirmation
from tidemark.io.state.outbox_transaction import OutboxTransaction
from tidemark.io.state.overtaken import check_not_overtaken
from tidemark.io.state.state_views import StateMarks, StateView
from tidemark.model.errors import Fenced
from tidemark.model.lsn import INVALID_LSN, Lsn, Oid, TimelineId
from tidemark.model.mode import STAGE_WHEN_MISSING, Stage
from tidemark.model.position import Epoch, Pointer
from tidemark.model.relation import KnownDatabase
from tidemark.wire.keys import named, parse_table, table_text
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress, Recopies
from tidemark.wire.state.event_logs import Loss, LossLog, Rewind, RewindLog, Switch, SwitchLog
from tidemark.wire.state.history_index import HistoryIndex, JournalMark
from tidemark.wire.state.process_log import Owner, ProcessLog
from tidemark.wire.state.state_keys import (
    BEGINNING,
    CONFIRMED,
    COPY,
    FINGERPRINT,
    FOLLOWED,
    HAND_OVER,
    HISTORY,
    IDENTITY,
    JOURNAL,
    LOSSES,
    MARKER_KEYS,
    OVERTAKEN,
    PROCESSES,
    RECOPIES,
    REWINDS,
    STAGE,
    SWITCHES,
    TERM,
)
from tidemark.wire.state.values import Followed, HandOver, MarkerKeys, Term
from tidemark.wire.values import EncodedGroup

_REFUSED = f'"{CopyPhase.REFUSED.value}"'.encode()  # in the stored form of a refused copy, and of few others
ExtraWrites = Callable[["StateTransaction"], None]  # more writes of one transaction


class StateTransaction(OutboxTransaction):
    """The state inside one LMDB transaction."""

    def check_epoch(self, epoch: Epoch | None) -> None:
        """Raise `Fenced` unless `epoch` is the current one."""
        term = self.get(TERM) if epoch is not None else None
        if epoch is not None and (term is None or term.epoch != epoch):
            now = f"{term.epoch} owned by {term.owner}" if term else "none"
            raise Fenced(f"epoch {epoch} has ended, the current one is {now}", hint="another process delivers now")

    def begin_epoch(self, owner: Owner) -> Epoch:
        """Begin the next epoch, on the latest timeline that was delivered, followed, or delivered by a leader.

        Raises `OvertakenState` if another copy of this state delivers.
        """
        check_not_overtaken(self.get(OVERTAKEN))
        delivered, term, followed = self.delivered(), self.term(), self.followed()
        known = [Epoch(TimelineId(1), 0)] if delivered is None else [Epoch(delivered.pointer.position.timeline, 0)]
        if term is not None:
            known.append(term.epoch)
        if followed is not None:
            known.append(Epoch(followed.pointer.position.timeline, 0))
            known += [followed.leader.epoch] if followed.leader is not None else []
        epoch = Epoch(max(known).timeline, max(epoch.number for epoch in known) + 1)
        self.put(TERM, Term(epoch, owner))
        return epoch

    def take_confirmation(self) -> TakenConfirmation | None:
        """Move delivered to what the consumer of the last epoch has confirmed, if its process was killed before that.

        To be called before a process that continues delivery begins an epoch, and in its transaction; or while no
        process can deliver. None: the state has all that is confirmed.
        """
        delivered, pointer = self.delivered(), self.confirmed_since()
        if delivered is None or pointer is None:
            return None
        self.put(CONFIRMED, self.deliver(EncodedGroup(pointer, delivered.commit_time_us, ())))
        return TakenConfirmation(delivered.pointer.position, pointer.position)

    def confirmed_since(self) -> Pointer | None:
        """Return what the consumer of the last epoch has confirmed after the delivered position; None: no more."""
        identity, term, delivered = self.get(IDENTITY), self.term(), self.delivered()
        last = read_confirmation(self._environment.folder)
        if identity is None or term is None or delivered is None or last is None or self.followed() is not None:
            return None
        if not last.continues(identity.outbox_id, term.epoch, delivered.pointer.position):
            return None
        # NB: the earlier restart LSN: decoding from there misses nothing after a later position.
        return Pointer(last.position, delivered.pointer.restart_lsn)

    def term(self) -> Term | None:
        """Return the current epoch and its owner."""
        return self.get(TERM)

    def switches(self) -> SwitchLog:
        """Return the latest switches; damaged: none."""
        return self.get_or_forget(SWITCHES) or SwitchLog()

    def record_switch(self, switch: Switch) -> None:
        """Record a switch, for people."""
        self.put(SWITCHES, self.switches().with_one_more(switch))

    def losses(self) -> LossLog:
        """Return the latest losses; damaged: none, as they were delivered through the outbox, too."""
        return self.get_or_forget(LOSSES) or LossLog()

    def record_loss(self, loss: Loss) -> None:
        """Record the WAL that was given up."""
        self.put(LOSSES, self.losses().with_one_more(loss))

    def rewinds(self) -> RewindLog:
        """Return the latest rewinds; damaged: none, as they were delivered through the outbox, too."""
        return self.get_or_forget(REWINDS) or RewindLog()

    def record_rewind(self, rewind: Rewind) -> None:
        """Record a dead branch."""
        self.put(REWINDS, self.rewinds().with_one_more(rewind))

    def stage(self) -> Stage:
        """Return the stage of the capture."""
        return self.get(STAGE) or STAGE_WHEN_MISSING

    def followed(self) -> Followed | None:
        """Return the position of this follower, also if its start is not found yet."""
        return self.get(FOLLOWED)

    def history(self) -> HistoryIndex:
        """Return the index of the catalog history."""
        return self.get(HISTORY) or HistoryIndex()

    def journal(self) -> JournalMark:
        """Return how far the journal of the catalog history is known to be durable."""
        return self.get(JOURNAL) or JournalMark()

    def put_history(self, index: HistoryIndex) -> None:
        """Store the index; if the journal was cut, lower its durable mark."""
        self.put(HISTORY, index)
        end_lsn = index.journals[-1].end_lsn if index.journals else INVALID_LSN
        is_growing = bool(index.journals) and end_lsn == INVALID_LSN
        if not is_growing and self.journal().end_lsn > end_lsn:
            self.put(JOURNAL, JournalMark(end_lsn))

    def rely_on_journal(self, end_lsn: Lsn) -> None:
        """Record that this transaction's delivery needs the journal up to `end_lsn`, which is durable."""
        if end_lsn > self.journal().end_lsn:
            self.put(JOURNAL, JournalMark(end_lsn))

    def copies(self) -> dict[tuple[Oid, Oid], CopyProgress]:
        """Return the first copies by database and relation."""
        return {parse_table(name): COPY.decode(stored) for name, stored in self.named_values("copies")}

    def refused_copies(self) -> dict[tuple[Oid, Oid], CopyProgress]:
        """Return the refused copies; other values are not parsed, since each scrape of the metrics reads this."""
        found = {
            parse_table(name): COPY.decode(stored) for name, stored in self.named_values("copies") if _REFUSED in stored
        }
        return {key: copy for key, copy in found.items() if copy.phase is CopyPhase.REFUSED}

    def copy(self, database: Oid, relation: Oid) -> CopyProgress | None:
        """Return the first copy of one table, None if there is none."""
        key = named(self._scope, table_text(database, relation))
        stored = self._transaction.get(key, db=self._environment.database("copies"))
        return None if stored is None else COPY.decode(stored)

    def put_copy(self, database: Oid, relation: Oid, progress: CopyProgress) -> None:
        """Store the progress of a table's first copy."""
        self.replace_value(self._environment.database("copies"), table_text(database, relation), COPY, progress)

    def drop_copy(self, database: Oid, relation: Oid, *, requested_to: Lsn | None = None) -> None:
        """Remove the copy of a table that no longer exists, and a request for one up to an LSN; None: any request."""
        table, recopies = table_text(database, relation), self.recopies()
        self._transaction.delete(named(self._scope, table), db=self._environment.database("copies"))
        request = recopies.tables.get(table)
        if request is not None and (requested_to is None or request.after_lsn <= requested_to):
            self.put_recopies(Recopies({name: kept for name, kept in recopies.tables.items() if name != table}))

    def recopies(self) -> Recopies:
        """Return the requested copies; damaged: none, and a client that waits for one finds it missing."""
        return self.get_or_forget(RECOPIES) or Recopies()

    def put_recopies(self, recopies: Recopies) -> None:
        """Store the requested copies."""
        self.put(RECOPIES, recopies)

    def record_databases(self, known: Mapping[Oid, KnownDatabase]) -> None:
        """Record captured databases, or some of them; the names of those that left the capture are still needed."""
        beginning = self.get(BEGINNING) if known else None
        if beginning is None:
            return
        names = {**beginning.databases, **{oid: database.name for oid, database in known.items()}}
        encodings = {**beginning.encodings, **{oid: database.encoding for oid, database in known.items()}}
        present = {database.name for database in known.values()}
        taken = {oid for oid, name in beginning.databases.items() if name in present}
        replaced = tuple(sorted({*beginning.replaced, *taken} - known.keys()))
        changed = replace(beginning, databases=names, encodings=encodings, replaced=replaced)
        if changed != beginning:
            self.put(BEGINNING, changed)

    def marks(self) -> StateMarks:
        """Return the positions and the stage."""
        readers, damaged = self.readers()
        return StateMarks(
            self.stage(),
            self.term(),
            self.delivered(),
            self.confirmed(),
            self.ledger(),
            dict(readers),
            damaged,
            self.followed(),
            self.get(OVERTAKEN),
        )

    def view(self) -> StateView:
        """Return all small values."""
        marks = self.marks()
        return StateView(
            stage=marks.stage,
            term=marks.term,
            delivered=marks.delivered,
            confirmed=marks.confirmed,
            ledger=marks.ledger,
            readers=marks.readers,
            damaged_readers=marks.damaged_readers,
            followed=marks.followed,
            overtaken=marks.overtaken,
            identity=self.identity,
            beginning=self.get(BEGINNING),
            history=self.history(),
            journal=self.journal(),
            copies=self.copies(),
            recopies=self.recopies(),
            fingerprint=self.get(FINGERPRINT),
            hand_over=self.get(HAND_OVER) or HandOver(),
            switches=self.switches(),
            losses=self.losses(),
            rewinds=self.rewinds(),
        )

    def marker_keys(self) -> MarkerKeys:
        """Return which daemon has which marker key; damaged: unknown until the daemons are restarted."""
        return self.get_or_forget(MARKER_KEYS) or MarkerKeys()

    def processes(self) -> ProcessLog:
        """Return the last end of each process; damaged: unknown until the processes are restarted."""
        return self.get_or_forget(PROCESSES) or ProcessLog()
