"""The keys of the state, and the policy of each if its value is damaged."""

from tidemark.model.incarnation import FolderIdentity
from tidemark.model.mode import Stage
from tidemark.wire.parked import ParkedLedger, SkipLog
from tidemark.wire.state.copy_progress import CopyProgress, Fingerprint, Recopies
from tidemark.wire.state.event_logs import LossLog, Notified, RewindLog, SwitchLog
from tidemark.wire.state.history_index import HistoryIndex, JournalMark
from tidemark.wire.state.key import DamagePolicy, Key
from tidemark.wire.state.outbox_ledger import OutboxLedger
from tidemark.wire.state.partition_positions import PartitionPositions
from tidemark.wire.state.plugin_log import PluginLog
from tidemark.wire.state.process_log import ProcessLog
from tidemark.wire.state.readers import Reader
from tidemark.wire.state.transformed_tables import TransformedTables
from tidemark.wire.state.values import (
    Archiving,
    Beginning,
    Followed,
    HandOver,
    Identity,
    Incarnations,
    MarkerKeys,
    Overtaken,
    Term,
    Watermark,
)


def _pointer_moves_back(before: Watermark | Followed, after: Watermark | Followed) -> bool:
    return after.pointer.position < before.pointer.position


def _ledger_moves_back(before: OutboxLedger, after: OutboxLedger) -> bool:
    return after.head < before.head or after.trimmed < before.trimmed


def _attempt_moves_back(before: HandOver, after: HandOver) -> bool:
    return after.attempt < before.attempt


def _reader_moves_back(before: Reader, after: Reader) -> bool:
    return after.applied < before.applied or after.replayable < before.replayable


def _generation_moves_back(before: CopyProgress, after: CopyProgress) -> bool:
    return after.generation < before.generation


IDENTITY = Key("identity", Identity, DamagePolicy.HALT)
BEGINNING = Key("beginning", Beginning, DamagePolicy.HALT)
STAGE = Key("stage", Stage, DamagePolicy.HALT)
HAND_OVER = Key("handover", HandOver, DamagePolicy.HALT, moves_back=_attempt_moves_back)
FOLLOWED = Key("followed", Followed, DamagePolicy.HALT, moves_back=_pointer_moves_back)
SWITCHES = Key("switches", SwitchLog, DamagePolicy.FORGET)
LOSSES = Key("losses", LossLog, DamagePolicy.FORGET)
REWINDS = Key("rewinds", RewindLog, DamagePolicy.FORGET)
TERM = Key("term", Term, DamagePolicy.HALT, moves_back=lambda before, after: after.epoch < before.epoch)
DELIVERED = Key("delivered", Watermark, DamagePolicy.DERIVE, moves_back=_pointer_moves_back)
CONFIRMED = Key("confirmed", Watermark, DamagePolicy.DERIVE, moves_back=_pointer_moves_back)
LEDGER = Key("ledger", OutboxLedger, DamagePolicy.DERIVE, moves_back=_ledger_moves_back)
READER = Key("reader", Reader, DamagePolicy.HOLD, moves_back=_reader_moves_back, earlier_names={"held": "applied"})
HISTORY = Key("history", HistoryIndex, DamagePolicy.REBUILD)
JOURNAL = Key("journal", JournalMark, DamagePolicy.HALT)
COPY = Key("copy", CopyProgress, DamagePolicy.HALT, moves_back=_generation_moves_back)
RECOPIES = Key("recopies", Recopies, DamagePolicy.FORGET)
FINGERPRINT = Key("fingerprint", Fingerprint, DamagePolicy.HALT)
MARKER_KEYS = Key("markerkeys", MarkerKeys, DamagePolicy.FORGET)
INCARNATIONS = Key("incarnations", Incarnations, DamagePolicy.HALT)
OVERTAKEN = Key("overtaken", Overtaken, DamagePolicy.HALT)
FOLDER_IDENTITY = Key("place", FolderIdentity, DamagePolicy.HALT)
ARCHIVING = Key("archiving", Archiving, DamagePolicy.FORGET)
NOTIFIED = Key("notified", Notified, DamagePolicy.FORGET)
ADDED_POSITIONS = Key("positions", PartitionPositions, DamagePolicy.HALT)
PLUGINS = Key("plugins", PluginLog, DamagePolicy.HALT)
TRANSFORMED = Key("transformed", TransformedTables, DamagePolicy.FORGET)
PARKED = Key("parked", ParkedLedger, DamagePolicy.DERIVE)
SKIPPED = Key("skipped", SkipLog, DamagePolicy.FORGET)
PROCESSES = Key("processes", ProcessLog, DamagePolicy.FORGET)
