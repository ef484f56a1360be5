"""Tidemark: realtime change data capture for PostgreSQL that never holds back the database.

The names in `__all__` are the library for applications (`docs/engine.md`); all other modules are internal. A name is
imported when it is first used: programs of Tidemark that import this package load nothing of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemark.embedding.async_handler import AsyncHandler
    from tidemark.embedding.engine import Engine
    from tidemark.embedding.engine_group import EngineGroup
    from tidemark.embedding.processor import Processor, ProcessorPart, WorkerPool
    from tidemark.embedding.signals import EngineSignal
    from tidemark.embedding.start_deadline import StartTimedOut
    from tidemark.engine.lifecycle import EngineState, IllegalTransition, StopStep
    from tidemark.engine.offset_update import OffsetsRefused
    from tidemark.engine.pool.batch import Batch, Change, Values
    from tidemark.engine.pool.commit_policy import ALWAYS, CommitPolicy, Finished, every
    from tidemark.engine.pool.dispatch import Order
    from tidemark.engine.pool.stop_condition import ChangeTest, StopWhen
    from tidemark.io.process.secret_sources import BadSecret, secret_environment, secret_file
    from tidemark.model.capture_change import CaptureChange
    from tidemark.model.change import (
        CopyBoundary,
        EngineEvent,
        LogicalMessage,
        Op,
        PartitionChange,
        PartitionEvent,
        RewriteBoundary,
        SchemaChange,
        SchemaEffect,
        SchemaEvent,
        TableCount,
        TransactionBoundary,
        TransactionEnd,
        Truncation,
    )
    from tidemark.model.errors import (
        ConfigError,
        ConsumerFailed,
        CorruptWal,
        Fenced,
        InternalError,
        NodeUnfit,
        NodeUnreachable,
        StateError,
        TidemarkError,
        WalGap,
    )
    from tidemark.model.lsn import FullXid, Lsn, Oid, SystemIdentifier, TimelineId, Xid
    from tidemark.model.poison import Poison, PoisonChange
    from tidemark.model.position import Epoch, Partition, Position
    from tidemark.model.relation import (
        Align,
        Column,
        EnumLabel,
        Relation,
        ReplicaIdentity,
        TypeDescription,
        TypeKind,
    )
    from tidemark.model.secret import Secret
    from tidemark.runtime.plugins.consumer import Consumer, DeliveredItem, Delivery
    from tidemark.runtime.plugins.handler import Handler
    from tidemark.runtime.pool.pool_kind import PoolKind
    from tidemark.serializers.json_records import DebeziumJson, FlatJson
    from tidemark.serializers.serializer import (
        SerializedBatch,
        SerializedChange,
        SerializedRecord,
        Serializer,
        SerializerFailed,
    )
    from tidemark.transforms.changed_fields import ChangedFieldsOnly
    from tidemark.transforms.columns import Cast, Drop, Rename
    from tidemark.transforms.filters import Filter, Route
    from tidemark.transforms.flatten import Flatten
    from tidemark.transforms.masks import Mask
    from tidemark.transforms.outbox_router import OutboxRouter
    from tidemark.transforms.transform import BadTransform, BoundTransform, TableShape, Transform, TransformFailed
    from tidemark.transforms.user_functions import OnBatch, OnRow
    from tidemark.wire.state.event_logs import Loss, Rewind

__all__ = [
    "ALWAYS",
    "Align",
    "AsyncHandler",
    "BadSecret",
    "BadTransform",
    "Batch",
    "BoundTransform",
    "CaptureChange",
    "Cast",
    "Change",
    "ChangeTest",
    "ChangedFieldsOnly",
    "Column",
    "CommitPolicy",
    "ConfigError",
    "Consumer",
    "ConsumerFailed",
    "CopyBoundary",
    "CorruptWal",
    "DebeziumJson",
    "DeliveredItem",
    "Delivery",
    "Drop",
    "Engine",
    "EngineEvent",
    "EngineGroup",
    "EngineSignal",
    "EngineState",
    "EnumLabel",
    "Epoch",
    "Fenced",
    "Filter",
    "Finished",
    "FlatJson",
    "Flatten",
    "FullXid",
    "Handler",
    "IllegalTransition",
    "InternalError",
    "LogicalMessage",
    "Loss",
    "Lsn",
    "Mask",
    "NodeUnfit",
    "NodeUnreachable",
    "OffsetsRefused",
    "Oid",
    "OnBatch",
    "OnRow",
    "Op",
    "Order",
    "OutboxRouter",
    "Partition",
    "PartitionChange",
    "PartitionEvent",
    "Poison",
    "PoisonChange",
    "PoolKind",
    "Position",
    "Processor",
    "ProcessorPart",
    "Relation",
    "Rename",
    "ReplicaIdentity",
    "Rewind",
    "RewriteBoundary",
    "Route",
    "SchemaChange",
    "SchemaEffect",
    "SchemaEvent",
    "Secret",
    "SerializedBatch",
    "SerializedChange",
    "SerializedRecord",
    "Serializer",
    "SerializerFailed",
    "StartTimedOut",
    "StateError",
    "StopStep",
    "StopWhen",
    "SystemIdentifier",
    "TableCount",
    "TableShape",
    "TidemarkError",
    "TimelineId",
    "TransactionBoundary",
    "TransactionEnd",
    "Transform",
    "TransformFailed",
    "Truncation",
    "TypeDescription",
    "TypeKind",
    "Values",
    "WalGap",
    "WorkerPool",
    "Xid",
    "every",
    "secret_environment",
    "secret_file",
]
_MODULES = {
    "engine.pool.batch": ("Batch", "Change", "Values"),
    "embedding.async_handler": ("AsyncHandler",),
    "embedding.engine": ("Engine",),
    "embedding.engine_group": ("EngineGroup",),
    "engine.pool.commit_policy": ("ALWAYS", "CommitPolicy", "Finished", "every"),
    "engine.pool.dispatch": ("Order",),
    "embedding.signals": ("EngineSignal",),
    "embedding.start_deadline": ("StartTimedOut",),
    "engine.lifecycle": ("EngineState", "IllegalTransition", "StopStep"),
    "engine.offset_update": ("OffsetsRefused",),
    "runtime.pool.pool_kind": ("PoolKind",),
    "embedding.processor": ("Processor", "ProcessorPart", "WorkerPool"),
    "engine.pool.stop_condition": ("ChangeTest", "StopWhen"),
    "model.capture_change": ("CaptureChange",),
    "model.change": (
        *("CopyBoundary", "EngineEvent", "LogicalMessage", "Op", "PartitionChange", "PartitionEvent"),
        *("RewriteBoundary", "SchemaChange", "SchemaEffect", "SchemaEvent", "TableCount", "TransactionBoundary"),
        *("TransactionEnd", "Truncation"),
    ),
    "model.errors": (
        *("ConfigError", "ConsumerFailed", "CorruptWal", "Fenced", "InternalError", "NodeUnfit", "NodeUnreachable"),
        *("StateError", "TidemarkError", "WalGap"),
    ),
    "model.lsn": ("FullXid", "Lsn", "Oid", "SystemIdentifier", "TimelineId", "Xid"),
    "model.poison": ("Poison", "PoisonChange"),
    "model.position": ("Epoch", "Partition", "Position"),
    "io.process.secret_sources": (
        "BadSecret",
        "secret_environment",
        "secret_file",
    ),
    "model.relation": (
        *("Align", "Column", "EnumLabel", "Relation", "ReplicaIdentity", "TypeDescription", "TypeKind"),
    ),
    "model.secret": ("Secret",),
    "runtime.plugins.consumer": ("Consumer", "DeliveredItem", "Delivery"),
    "runtime.plugins.handler": ("Handler",),
    "serializers.json_records": ("DebeziumJson", "FlatJson"),
    "serializers.serializer": (
        "SerializedBatch",
        "SerializedChange",
        "SerializedRecord",
        "Serializer",
        "SerializerFailed",
    ),
    "transforms.changed_fields": ("ChangedFieldsOnly",),
    "transforms.columns": (
        "Cast",
        "Drop",
        "Rename",
    ),
    "transforms.filters": (
        "Filter",
        "Route",
    ),
    "transforms.flatten": ("Flatten",),
    "transforms.masks": ("Mask",),
    "transforms.outbox_router": ("OutboxRouter",),
    "transforms.transform": (
        "BadTransform",
        "BoundTransform",
        "TableShape",
        "Transform",
        "TransformFailed",
    ),
    "wire.state.event_logs": ("Loss", "Rewind"),
    "transforms.user_functions": (
        "OnBatch",
        "OnRow",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
