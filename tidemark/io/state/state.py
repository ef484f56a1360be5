"""The state of a capture: the durable values, and the transactions that change them.

Everything that determines who delivers, and the position, changes in one LMDB transaction, which checks the epoch
first: the loser of a switch fails in it, with nothing written. Positions never move back on a timeline. Each key has a
policy for damage (`tidemark.wire.state.state_keys`); none is a silent start from the oldest position.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Self

from tidemark.io.host.logs import Log
from tidemark.io.state.confirmed_file import TakenConfirmation
from tidemark.io.state.environment import Environment, Guarded, LmdbTransaction, StateMissing, map_bytes_for
from tidemark.io.state.opened_state import OpenedState, capture_scope, scope_of
from tidemark.io.state.schema_numbers import SchemaNumbers
from tidemark.io.state.state_folder import StateFolder
from tidemark.io.state.state_transaction import StateTransaction
from tidemark.io.state.state_views import StateMarks, StateView
from tidemark.model.errors import Fenced, StateError
from tidemark.model.incarnation import Extent
from tidemark.model.lsn import Oid
from tidemark.model.position import NO_SEQUENCE, Epoch, Sequence
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.keys import Scope, named
from tidemark.wire.state.copy_progress import CopyProgress, Recopies
from tidemark.wire.state.key import DamagePolicy
from tidemark.wire.state.outbox_ledger import OutboxLedger
from tidemark.wire.state.plugin_log import PluginLog
from tidemark.wire.state.process_log import Owner, ProcessLog
from tidemark.wire.state.state_keys import ARCHIVING, HAND_OVER, IDENTITY, INCARNATIONS, LEDGER, MARKER_KEYS, PLUGINS
from tidemark.wire.state.values import Archiving, HandOver, Identity, Incarnations, MarkerKeys


class NotDeliverer(Fenced):
    """The stage lets another role deliver."""

    hint = "switch with `cdcctl realtime on` or `off`"


class NotInitialised(StateError):
    """A state folder in which `init` did not complete."""

    hint = "run `cdcctl init` again"


class StateStore(OpenedState):
    """The state of one capture for the programs that change it."""

    def __init__(self, environment: Environment, scope: Scope, identity: Identity) -> None:
        super().__init__(environment, scope, identity)
        self._numbers = SchemaNumbers()

    @classmethod
    def create(
        cls,
        folder: StateFolder,
        identity: Identity,
        *,
        numbers_after: Sequence = NO_SEQUENCE,
        guarded: Guarded = nullcontext,
    ) -> Self:
        """Create the state of a capture, or open the existing one of the same capture and cluster.

        `numbers_after`: the greatest sequence in the target's tables, if an outbox was lost.
        """
        folder.make()
        map_bytes = map_bytes_for(identity.outbox_bytes_max)
        environment = Environment.open(folder, map_bytes=map_bytes, create=True, guarded=guarded)
        try:
            try:
                scope, found = capture_scope(environment)
            except StateMissing:
                scope, found = scope_of(identity), identity
                ledger = OutboxLedger(numbers_after, numbers_after)
                with environment.write() as transaction:
                    database = environment.database("state")
                    transaction.put(named(scope, IDENTITY.name), IDENTITY.encode(identity), db=database)
                    transaction.put(named(scope, LEDGER.name), LEDGER.encode(ledger), db=database)
            _check_same(folder, found, identity)
        except BaseException:
            environment.close()
            raise
        return cls(environment, scope, found)

    @contextmanager
    def reading(self) -> Iterator[StateTransaction]:
        """Run one transaction that only reads."""
        with self.environment.read() as transaction:
            yield self._inside(transaction)

    def view(self) -> StateView:
        """Read all small values in one transaction."""
        with self.environment.read() as transaction:
            return self._inside(transaction).view()

    def marks(self) -> StateMarks:
        """Read the positions and the stage."""
        with self.environment.read() as transaction:
            return self._inside(transaction).marks()

    def hand_over(self) -> HandOver:
        """Read the last hand-over to the sidecar."""
        with self.environment.read() as transaction:
            return self._inside(transaction).get(HAND_OVER) or HandOver()

    def incarnations(self) -> tuple[Incarnations, Extent]:
        """Read the incarnations of this state, and its extent."""
        with self.environment.read() as transaction:
            seen = self._inside(transaction)
            return seen.get(INCARNATIONS) or Incarnations(), seen.marks().extent

    def marker_keys(self) -> MarkerKeys:
        """Read which daemon has which marker key."""
        with self.environment.read() as transaction:
            return self._inside(transaction).marker_keys()

    def processes(self) -> ProcessLog:
        """Read the last end of each process."""
        with self.environment.read() as transaction:
            return self._inside(transaction).processes()

    def plugins(self) -> PluginLog | None:
        """Read the consumer of this state, and the plug-ins of each daemon; None before the first start."""
        with self.environment.read() as transaction:
            return self._inside(transaction).get(PLUGINS)

    def record_marker_key(self, role: str, name: str) -> None:
        """Record the key by which a daemon writes and reads markers from now on."""
        known = self.marker_keys().names
        if known.get(role) != name:
            with self.transaction(None) as transaction:
                transaction.put(MARKER_KEYS, MarkerKeys({**transaction.marker_keys().names, role: name}))

    def archiving(self) -> Archiving:
        """Read a daemon's last observation of the node's archiving; damaged: nothing."""
        with self.environment.read() as transaction:
            try:
                return self._inside(transaction).get(ARCHIVING) or Archiving()
            except DamagedValue:
                assert ARCHIVING.policy is DamagePolicy.FORGET
                return Archiving()

    def record_archiving(self, seen: Archiving) -> None:
        """Record an observation of the node's archiving."""
        if self.archiving() != seen:
            with self.transaction(None) as transaction:
                transaction.put(ARCHIVING, seen)

    def copy(self, database: Oid, relation: Oid) -> CopyProgress | None:
        """Read the progress of one table's first copy."""
        with self.environment.read() as transaction:
            return self._inside(transaction).copy(database, relation)

    def refused_copies(self) -> dict[tuple[Oid, Oid], CopyProgress]:
        """Read which copies were refused."""
        with self.environment.read() as transaction:
            return self._inside(transaction).refused_copies()

    def recopies(self) -> Recopies:
        """Read the requested copies."""
        with self.environment.read() as transaction:
            return self._inside(transaction).recopies()

    @contextmanager
    def transaction(self, epoch: Epoch | None) -> Iterator[StateTransaction]:
        """Run one durable transaction as the owner of `epoch`; None: for values that every process may write."""
        with self.environment.write() as written:
            transaction = self._inside(written)
            transaction.check_epoch(epoch)
            yield transaction
        transaction.record_versions()

    def begin_epoch(self, owner: Owner, log: Log | None = None) -> Epoch:
        """Begin a new epoch: the owner of the last one fails in its next transaction.

        Delivery continues after all that the consumer of the last one has confirmed; `log` reports what was not
        recorded of it. Raises `NotDeliverer` if the stage lets another role deliver, or follow.
        """
        with self.transaction(None) as transaction:
            stage = transaction.stage()
            if stage.worker is None or stage.worker.value != owner.role:
                raise NotDeliverer(
                    f"the stage of {self.folder.root} is {stage.value}: the {owner.role} may not deliver"
                )
            taken = transaction.take_confirmation()
            epoch = transaction.begin_epoch(owner)
        self.read_versions()
        if taken is not None and log is not None:
            taken.report(log)
        return epoch

    def take_confirmation(self) -> TakenConfirmation | None:
        """Move delivered to what the consumer of a killed process has confirmed; the caller has all deliverers' locks.

        Before a command that takes an epoch of its own: from then on nothing else has the confirmation.
        """
        with self.reading() as transaction:
            has_more = transaction.confirmed_since() is not None
        if has_more:
            with self.transaction(None) as transaction:
                return transaction.take_confirmation()
        return None

    def read_versions(self) -> None:
        """Read the schema versions again, as the owner of an earlier epoch has left them."""
        with self.reading() as transaction:
            head = transaction.ledger().head
        self._numbers = SchemaNumbers(self.relations(), head)

    def drop_versions(self, is_dropped: Callable[[Oid, Oid], bool]) -> None:
        """Record which tables of the stored schema versions were dropped earlier, if some versions may be deleted.

        `is_dropped` has a database and a relation. Its catalogs may be older than the last delivered group: a table
        with a copy exists, since a delivered DROP removes the copy.
        """
        if not self._numbers.needs_search:
            return
        with self.reading() as transaction:
            head, copies = transaction.ledger().head, transaction.copies()
        dropped = [key for key in sorted(self._numbers.tables() - copies.keys()) if is_dropped(*key)]
        self._numbers.drop(dropped, head)

    def _inside(self, transaction: LmdbTransaction) -> StateTransaction:
        return StateTransaction(self.environment, transaction, self.scope, self.identity, self._numbers)


def _check_same(folder: StateFolder, found: Identity, wanted: Identity) -> None:
    if (found.capture, found.system_identifier) != (wanted.capture, wanted.system_identifier):
        raise StateError(
            f"{folder.root} belongs to capture {found.capture!r} of system {found.system_identifier}, "
            f"not to {wanted.capture!r} of system {wanted.system_identifier}",
            hint="choose another state folder, or the DSN for which this one was created",
        )
