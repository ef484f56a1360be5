"""Plug-ins with faults."""

import os
import sys
from collections.abc import Mapping, Sequence

from tidemark import (
    BadTransform,
    Batch,
    BoundTransform,
    Change,
    Consumer,
    Delivery,
    Drop,
    Epoch,
    Handler,
    Position,
    SerializedRecord,
    Serializer,
    TableShape,
    Transform,
)


class AcceptingConsumer(Consumer):
    """Confirms everything."""

    version = "7"

    def __init__(self, note: str = "") -> None:
        self.note = note
        self.delivered: list[Delivery] = []

    def on_assigned(self, epoch: Epoch, start: Position) -> None:
        pass

    def on_delivery(self, delivery: Delivery) -> bool:
        self.delivered.append(delivery)
        return True


class VersionedConsumer(AcceptingConsumer):
    version = os.environ.get("PLUGIN_VERSION", "7")


class RaisingConsumer(AcceptingConsumer):
    def __init__(self) -> None:
        raise ValueError("no target")


class ExitingConsumer(AcceptingConsumer):
    """Its code was written as a program."""

    def on_delivery(self, delivery: Delivery) -> bool:
        del delivery
        sys.exit(0)


class IncompleteConsumer(Consumer):
    def on_assigned(self, epoch: Epoch, start: Position) -> None:
        pass


class IncompleteHandler(Handler[Batch]):
    def stop(self) -> None:
        pass


class HandlerOfLater(Handler[Batch]):
    """Its code never runs."""

    async def handle(self, batch: Batch) -> None:  # type: ignore[override]
        raise AssertionError(batch)


class SilentSerializer(Serializer):
    """Returns nothing."""

    def records(self, batch: Batch, now_ns: int) -> Sequence[SerializedRecord]:
        del batch, now_ns
        return None  # type: ignore[return-value]


class SerializerOfNoSection(SilentSerializer):
    """Needs a section that the configuration does not have."""

    settings: Mapping[str, Mapping[str, object]] = {"formats": {"decimals": "string"}}


class SerializerOfNoKey(SilentSerializer):
    """Needs a key that its section does not have."""

    settings: Mapping[str, Mapping[str, object]] = {"types": {"decimal": "string"}}


class SerializerOfKeysAlone(SilentSerializer):
    """Has keys where sections are needed."""

    settings: Mapping[str, Mapping[str, object]] = {"decimals": "string"}  # type: ignore[dict-item]


class SerializerOfSections(SilentSerializer):
    """Has a list where a mapping is needed."""

    settings: Mapping[str, Mapping[str, object]] = ["types"]  # type: ignore[assignment]


class SerializerOfNumber(SilentSerializer):
    """Has a key that is no text."""

    settings: Mapping[str, Mapping[str, object]] = {"types": {5: "string"}}  # type: ignore[dict-item]


def leaking(change: Change) -> Change:
    """Raise an error whose text has a value of the row."""
    raise ValueError(f"cannot process {change.after}")


class DatabaseRefuser(Transform):
    """Does not fit the tables of a database with one name."""

    def __init__(self, database: str) -> None:
        super().__init__(tables="*.*")
        self._database = database

    def bind(self, shape: TableShape) -> BoundTransform | None:
        if shape.database == self._database:
            raise BadTransform(f"{shape.table} is in {self._database}")
        return None


class NoteDropper(Transform):
    """Drops the column `note`; raises an error of its own if there is none."""

    def __init__(self) -> None:
        super().__init__(tables="public.account")

    def bind(self, shape: TableShape) -> BoundTransform | None:
        shape.names.index("note")
        return Drop("public.account.note").bind(shape)
