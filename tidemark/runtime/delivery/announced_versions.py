"""The versions of relations that a consumer has received, each before the first change that has it."""

from typing import TYPE_CHECKING

from tidemark.engine.ports import GroupConsumer
from tidemark.model.change import ChangeBatch, ChangeGroup, SchemaChange, SchemaEffect, SchemaEvent
from tidemark.model.lsn import Oid, Xid

if TYPE_CHECKING:
    from tidemark.model.relation import Relation


class AnnouncedVersions:
    """The versions that were announced to one consumer since it started."""

    def __init__(self, consumer: GroupConsumer) -> None:
        self._consumer = consumer
        self._known: dict[tuple[Oid, Oid], Relation] = {}  # by database and relation

    def announce(self, group: ChangeGroup) -> None:
        """Announce the versions of a group that the consumer has not received."""
        for item in group.items:
            if isinstance(item, ChangeBatch):
                relation = item.relation
                key = (item.database, relation.oid)
                known = self._known.get(key)
                if known is not relation and known != relation:  # NB: comparing takes longer than the rest
                    self._consumer.on_schema(_introduction(group, item))
                    self._known[key] = relation
            elif isinstance(item, SchemaEvent):
                self._consumer.on_schema(item)
                if item.after is not None:
                    self._known[item.database, item.after.oid] = item.after
                elif item.before is not None:
                    self._known.pop((item.database, item.before.oid), None)


def _introduction(group: ChangeGroup, batch: ChangeBatch) -> SchemaEvent:
    """Introduce a relation version to a consumer that has not seen it since it started."""
    lsn = group.first.commit_lsn
    return SchemaEvent(
        position=group.first,
        lsn=lsn,
        database=batch.database,
        xid=Xid(0),
        change=SchemaChange.CREATE,
        effect=SchemaEffect.METADATA,
        before=None,
        after=batch.relation,
    )
