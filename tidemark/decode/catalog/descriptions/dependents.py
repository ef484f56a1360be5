"""Finds the relations that depend on a type, a namespace or another relation, through indexes on the references.

A table's own row type usually has no users, so a rename of a table costs a few look-ups, not a scan.
"""

import struct
from collections.abc import Iterator

from tidemark.decode.catalog.descriptions.views import UnreportedSubjects
from tidemark.decode.catalog.heap import CatalogSnapshot
from tidemark.decode.catalog.layout import (
    CATALOG_OF_OID,
    PG_ATTRIBUTE,
    PG_CLASS,
    PG_INHERITS,
    PG_NAMESPACE,
    PG_RANGE,
    PG_TYPE,
    CatalogId,
    data_at,
)
from tidemark.decode.catalog.store import CatalogStore
from tidemark.decode.catalog.transactions import Subject
from tidemark.model.lsn import Oid, Xid

_OID = struct.Struct("<I")


class Dependents:
    """Follows references backwards, among committed rows and those that one transaction sees."""

    def __init__(self, store: CatalogStore, top_xid: Xid) -> None:
        self._store = store
        self._snapshots = tuple((xid, store.snapshot(xid)) for xid in (None, top_xid))

    def of(self, unreported: UnreportedSubjects) -> set[Oid]:
        """Return the OIDs of all relations whose description may depend on the subjects.

        What the transaction has created since the last report, or has created and dropped, has no dependents but those
        that it changed, too.
        """
        found = set(unreported.subjects)
        committed, own = self._snapshots
        todo = [
            subject
            for subject in found
            if self._exists(subject, *committed) or (subject not in unreported.first and self._exists(subject, *own))
        ]
        while todo:
            for user in self._users(todo.pop()):
                if user not in found:
                    found.add(user)
                    todo.append(user)
        return {subject.oid for subject in found if subject.kind == PG_CLASS.oid}

    def _exists(self, subject: Subject, xid: Xid | None, snapshot: CatalogSnapshot) -> bool:
        """Return whether a snapshot shows the subject."""
        heap = self._store.heap(CATALOG_OF_OID[subject.kind], xid)
        return next(heap.find("oid", subject.oid, snapshot), None) is not None

    def _users(self, subject: Subject) -> Iterator[Subject]:
        if subject.kind == PG_TYPE.oid:
            for column in ("typelem", "typbasetype"):
                yield from self._referring(PG_TYPE, column, subject.oid, PG_TYPE, "oid")
            yield from self._referring(PG_RANGE, "rngsubtype", subject.oid, PG_TYPE, "rngtypid")
            yield from self._referring(PG_RANGE, "rngtypid", subject.oid, PG_TYPE, "rngmultitypid")
            yield from self._referring(PG_ATTRIBUTE, "atttypid", subject.oid, PG_CLASS, "attrelid")
        elif subject.kind == PG_CLASS.oid:
            yield from self._referring(PG_TYPE, "typrelid", subject.oid, PG_TYPE, "oid")
            yield from self._referring(PG_INHERITS, "inhparent", subject.oid, PG_CLASS, "inhrelid")
        elif subject.kind == PG_NAMESPACE.oid:
            yield from self._referring(PG_TYPE, "typnamespace", subject.oid, PG_TYPE, "oid")
            yield from self._referring(PG_CLASS, "relnamespace", subject.oid, PG_CLASS, "oid")

    def _referring(
        self, catalog: CatalogId, column: str, oid: Oid, kind: CatalogId, named_by: str
    ) -> Iterator[Subject]:
        """Yield the subjects of the rows of `catalog` whose `column` is `oid`."""
        for xid, snapshot in self._snapshots:
            heap = self._store.heap(catalog, xid)
            at = heap.layout.offsets[named_by]
            for packed in heap.find(column, oid, snapshot):
                yield Subject(kind.oid, Oid(_OID.unpack_from(packed, data_at(packed) + at)[0]))
