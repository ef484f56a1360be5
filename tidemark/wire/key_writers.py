"""Which module may write which key of the state; `tests/unit/test_key_writers.py` compares the source with this table.

All writes are inside one LMDB transaction. A module that delivers checks the epoch in the same transaction; `init`,
recovery and operators' commands write while no process delivers, or take the next epoch themselves.
"""

from collections.abc import Mapping

from tidemark.wire.state import state_keys

_TRANSACTION = "tidemark.io.state.state_transaction"  # epoch, logs, history: all processes use its methods
_DELIVERY = "tidemark.io.state.outbox_transaction"  # delivery and readers: the same
_STORE = "tidemark.io.state.state"
_INCARNATIONS = "tidemark.io.state.incarnations"  # each process at its start, and when another copy overtakes this one
_SWITCHING = "tidemark.io.state.switching"  # the stage: sidecar, archiver, `cdcctl realtime`
_OUTBOX = "tidemark.io.readers.outbox"  # readers: Spark's driver, the outbox server, `cdcctl reader`
_PARKED = "tidemark.io.parked.parked_table"  # the process that delivers to a consumer, and `cdcctl parked`
_RUNS = "tidemark.io.process.run_record"
_PLUGINS = "tidemark.runtime.plugins.plugin_uses"  # each daemon at its start
_INIT = "tidemark.runtime.seed.initialise"  # `cdcctl init`
_COPY = "tidemark.runtime.first_copy.first_copy"  # the process that delivers
_BACKUP_COPY = "tidemark.runtime.first_copy.backup_copy"  # the same
_CONSUMER = "tidemark.runtime.delivery.stored_confirmations"  # the process that delivers to a custom consumer
_NOTICES = "tidemark.runtime.delivery.notices"  # the same one
_TRANSFORMS = "tidemark.runtime.plugins.transform_changes"  # the process that delivers
_FOLLOWER = "tidemark.runtime.delivery.following"  # a sidecar on a standby
_PROMOTION = "tidemark.runtime.recovery.promotion"  # the sidecar of a node that was promoted
_REBUILD = "tidemark.runtime.recovery.rebuild"  # a new state from the spool
_RESUMPTION = "tidemark.runtime.recovery.resumption"  # `cdcctl archive repair`, `cdcctl rewind`
_REWIND = "tidemark.runtime.recovery.rewinding"

WRITERS: Mapping[str, frozenset[str]] = {
    state_keys.IDENTITY.name: frozenset({_STORE, _PROMOTION}),
    state_keys.BEGINNING.name: frozenset({_TRANSACTION, _INIT, _REBUILD, _RESUMPTION}),
    state_keys.STAGE.name: frozenset({_SWITCHING, _INIT, _REBUILD}),
    state_keys.HAND_OVER.name: frozenset({_SWITCHING, _INIT, _PROMOTION, _REBUILD, _REWIND}),
    state_keys.FOLLOWED.name: frozenset({_SWITCHING, _INIT, _FOLLOWER, _PROMOTION, _REBUILD}),
    state_keys.SWITCHES.name: frozenset({_TRANSACTION}),
    state_keys.LOSSES.name: frozenset({_TRANSACTION}),
    state_keys.REWINDS.name: frozenset({_TRANSACTION}),
    state_keys.TERM.name: frozenset({_TRANSACTION, _INCARNATIONS, _INIT, _REBUILD}),
    state_keys.DELIVERED.name: frozenset({_DELIVERY, _INIT, _FOLLOWER, _PROMOTION, _REBUILD}),
    state_keys.CONFIRMED.name: frozenset({_TRANSACTION, _DELIVERY, _CONSUMER, _PROMOTION}),
    state_keys.LEDGER.name: frozenset({_STORE, _DELIVERY, _PROMOTION}),
    state_keys.READER.name: frozenset({_OUTBOX, _DELIVERY}),
    state_keys.HISTORY.name: frozenset({_TRANSACTION, _INIT, _REBUILD}),
    state_keys.JOURNAL.name: frozenset({_TRANSACTION, _REBUILD}),
    state_keys.COPY.name: frozenset({_TRANSACTION}),
    state_keys.RECOPIES.name: frozenset({_TRANSACTION}),
    state_keys.FINGERPRINT.name: frozenset({_INIT, _COPY, _BACKUP_COPY, _REBUILD, _RESUMPTION, _REWIND}),
    state_keys.MARKER_KEYS.name: frozenset({_STORE}),
    state_keys.INCARNATIONS.name: frozenset({_INCARNATIONS}),
    state_keys.OVERTAKEN.name: frozenset({_INCARNATIONS}),
    state_keys.FOLDER_IDENTITY.name: frozenset({_INCARNATIONS}),
    state_keys.ARCHIVING.name: frozenset({_STORE}),
    state_keys.ADDED_POSITIONS.name: frozenset({_CONSUMER}),
    state_keys.NOTIFIED.name: frozenset({_NOTICES}),
    state_keys.PLUGINS.name: frozenset({_PLUGINS}),
    state_keys.TRANSFORMED.name: frozenset({_TRANSFORMS, _REBUILD}),
    state_keys.PARKED.name: frozenset({_PARKED}),
    state_keys.SKIPPED.name: frozenset({_PARKED}),
    state_keys.PROCESSES.name: frozenset({_RUNS}),
}
