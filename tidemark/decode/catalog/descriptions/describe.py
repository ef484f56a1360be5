"""Turns rows of catalogs into descriptions of relations and types, as one transaction sees them.

Every description comes with the subjects from which it was made, so that it is made again only when one of them
changes.
"""

import struct
from collections.abc import Iterator
from dataclasses import replace
from sys import intern

from tidemark.decode.catalog.descriptions.described import (
    Above,
    DescribedName,
    DescribedRelation,
    DescribedType,
    DescribedTypes,
)
from tidemark.decode.catalog.descriptions.described_rows import (
    ALIGNS,
    AttributeRow,
    ClassRow,
    IndexRow,
    RowReaders,
    TypeRow,
    nameless_type,
)
from tidemark.decode.catalog.descriptions.interning import Interner
from tidemark.decode.catalog.layout import (
    PG_ATTRIBUTE,
    PG_CLASS,
    PG_ENUM,
    PG_INDEX,
    PG_INHERITS,
    PG_NAMESPACE,
    PG_RANGE,
    PG_TYPE,
    CatalogId,
    data_at,
    name_text,
)
from tidemark.decode.catalog.store import CatalogStore
from tidemark.decode.catalog.transactions import Subject
from tidemark.decode.types.encodings import decode_text
from tidemark.decode.types.identifiers import PUBLIC, quote_identifier, type_display_name, visible_name
from tidemark.model.lsn import INVALID_OID, Oid, Xid
from tidemark.model.relation import Align, Column, EnumLabel, Relation, ReplicaIdentity, TypeDescription, TypeKind

PG_CATALOG_OID = Oid(11)
ARRAY_SUBSCRIPT_HANDLER = 6179  # pg_proc.dat
TYPE_DEPTH_MAX = 64  # arrays of domains over composites of ...: the server has no bound
_PLAIN_STORAGE = b"p"
_NAME_OF = {PG_CLASS.oid: "relname", PG_TYPE.oid: "typname"}
_INT2VECTOR_VALUES_AT = 24  # varlena header, ndim, dataoffset, elemtype, dim, lower bound: 4 bytes each


class Incomplete(Exception):
    """Rows that belong together are incomplete: a command is in progress, or the mirror is wrong."""


class NoType(Incomplete):
    """A type does not exist."""

    def __init__(self, oid: Oid) -> None:
        super().__init__(f"type {oid} is missing")
        self.oid = oid


class Describer:
    """Describes what one transaction sees, or what is committed; caches in `types` and `interner`."""

    def __init__(
        self,
        store: CatalogStore,
        readers: RowReaders,
        encoding: str,
        top_xid: Xid | None,
        types: DescribedTypes,
        *,
        interner: Interner,
    ) -> None:
        self._store = store
        self._readers = readers
        self._major = store.format.major
        self._encoding = encoding
        self._top_xid = top_xid
        self._snapshot = store.snapshot(top_xid)
        self._types = types
        self._interner = interner

    def class_row(self, oid: Oid) -> ClassRow | None:
        """Return the row of pg_class with that OID."""
        packed = next(self._rows(PG_CLASS, "oid", oid), None)
        return None if packed is None else ClassRow(*self._readers.of_class.unpack_from(packed, data_at(packed)))

    def classes_with_file(self, relfilenode: Oid) -> Iterator[ClassRow]:
        """Yield the rows of pg_class with that relfilenode, in any tablespace."""
        for packed in self._rows(PG_CLASS, "relfilenode", relfilenode):
            yield ClassRow(*self._readers.of_class.unpack_from(packed, data_at(packed)))

    def relation(self, oid: Oid, above: Above) -> DescribedRelation | None:
        """Describe a relation; None if it does not exist; raise `Incomplete` if rows are missing."""
        row = self.class_row(oid)
        if row is None:
            return None
        subjects = {Subject(PG_NAMESPACE.oid, row.namespace)}
        columns = self._columns(oid, row.natts, subjects, 0)
        primary_key, identity = self._keys(oid, row.identity)
        parent = self._parent(oid) if row.is_partition else INVALID_OID
        ancestors = self._ancestors(parent, above, subjects) if parent else ()
        relation = Relation(
            oid=oid,
            namespace=self._schema(row.namespace) or str(row.namespace),
            name=self._name(row.name),
            kind=row.kind.decode("ascii"),
            persistence=row.persistence.decode("ascii"),
            columns=columns,
            replica_identity=ReplicaIdentity(row.identity.decode("ascii")),
            identity_columns=identity,
            primary_key=primary_key,
            toast_oid=row.toast,
            rewrite_of=row.rewrite,
            partition_of=parent,
            ancestors=ancestors,
        )
        return DescribedRelation(relation, self._interner.subjects(subjects))

    def type(self, oid: Oid, depth: int = 0) -> DescribedType:
        """Describe a type."""
        known = self._types.get(oid)
        if known is None:
            if depth > TYPE_DEPTH_MAX:
                raise Incomplete(f"type {oid} contains itself")
            known = self._describe_type(oid, depth)
            self._types.keep(oid, known)
        return known

    def _describe_type(self, oid: Oid, depth: int) -> DescribedType:
        row = self._type_row(oid)
        if row is None:
            raise NoType(oid)
        subjects = {Subject(PG_TYPE.oid, oid), Subject(PG_NAMESPACE.oid, row.namespace)}

        def other(found: DescribedType) -> TypeDescription:
            subjects.update(found.subjects)
            return found.type

        described = TypeDescription(
            oid=oid,
            namespace=self._schema(row.namespace) or str(row.namespace),
            name=self._name(row.name),
            display_name=self._type_name(oid, row),
            kind=TypeKind(row.kind.decode("ascii")),
            length=row.length,
            by_value=row.by_value,
            align=Align(row.align.decode("ascii")),
            delimiter=row.delimiter.decode("latin-1"),
        )
        if row.element and row.subscript == ARRAY_SUBSCRIPT_HANDLER:
            element = other(self.type(row.element, depth + 1))
            shown = f"{element.display_name}[]" if row.storage != _PLAIN_STORAGE else described.display_name
            described = replace(described, element=element, display_name=shown)
        match described.kind:
            case TypeKind.DOMAIN:
                base = other(self._type_in(row, row.base, depth + 1))
                described = replace(described, base=base, base_typmod=row.typmod)
            case TypeKind.ENUM:
                described = replace(described, labels=self._labels(oid))
            case TypeKind.RANGE:
                subtype, _ = self._range("rngtypid", oid)
                described = replace(described, subtype=other(self._type_in(row, subtype, depth + 1)))
            case TypeKind.MULTIRANGE:
                _, range_oid = self._range("rngmultitypid", oid)
                described = replace(described, subtype=other(self.type(range_oid, depth + 1)))
            case TypeKind.COMPOSITE:
                composite = self.class_row(row.relation)
                if composite is None:
                    raise Incomplete(f"relation {row.relation} of the composite type {oid} is missing")
                attributes = self._columns(row.relation, composite.natts, subjects, depth + 1)
                subjects.add(Subject(PG_CLASS.oid, row.relation))
                described = replace(described, attributes=attributes)
        return DescribedType(described, frozenset(subjects))

    def _type_in(self, holder: AttributeRow | TypeRow, oid: Oid, depth: int) -> DescribedType:
        """Return the type of a column, or of which a domain or range is made; without a name if it does not exist.

        NB: CREATE TABLE, CREATE DOMAIN and CREATE TYPE lock no type, and DROP TYPE does not see what another session
        creates meanwhile. The server fails where it needs such a type, and otherwise continues.
        """
        try:
            return self.type(oid, depth)
        except NoType as error:
            if error.oid != oid:
                raise
            return DescribedType(nameless_type(oid, holder), frozenset({Subject(PG_TYPE.oid, oid)}))

    def _type_row(self, oid: Oid) -> TypeRow | None:
        packed = next(self._rows(PG_TYPE, "oid", oid), None)
        return None if packed is None else TypeRow(*self._readers.type.unpack_from(packed, data_at(packed)))

    def class_name(self, oid: Oid) -> DescribedName | None:
        """Return what `regclass` prints for a relation; None if it does not exist."""
        row = self.class_row(oid)
        if row is None:
            return None
        namespace = self._schema(row.namespace)
        hidden = namespace == PUBLIC and self._is_catalogs(PG_CLASS, "relnamespace", row.name)
        text = visible_name(namespace, self._name(row.name), self._major, hidden=hidden)
        return DescribedName(text, self._interner.subjects({Subject(PG_NAMESPACE.oid, row.namespace)}))

    def type_name(self, oid: Oid) -> str | None:
        """Return what `regtype` prints for a type; None if it does not exist."""
        row = self._type_row(oid)
        if row is None:
            return None
        if row.element and row.subscript == ARRAY_SUBSCRIPT_HANDLER and row.storage != _PLAIN_STORAGE:
            element = self.type_name(row.element)
            return None if element is None else f"{element}[]"
        return self._type_name(oid, row)

    def namespace_name(self, oid: Oid) -> str | None:
        """Return what `regnamespace` prints for a schema; None if it does not exist."""
        name = self._schema(oid)
        return None if name is None else quote_identifier(name, self._major)

    def _type_name(self, oid: Oid, row: TypeRow) -> str:
        namespace = self._schema(row.namespace)
        hidden = namespace == PUBLIC and self._is_catalogs(PG_TYPE, "typnamespace", row.name)
        return type_display_name(oid, namespace, self._name(row.name), self._major, hidden=hidden)

    def _columns(self, oid: Oid, count: int, subjects: set[Subject], depth: int) -> tuple[Column, ...]:
        columns: dict[int, Column] = {}
        types: dict[Oid, TypeDescription] = {}
        begin, end = self._readers.attribute_from, self._readers.attribute_to
        for packed in self._rows(PG_ATTRIBUTE, "attrelid", oid):
            at = data_at(packed)
            attribute = packed[at + begin : at + end]
            column = self._interner.column(attribute)
            if column is not None and column.number > count:
                continue  # ALTER TABLE has not counted it in pg_class yet
            if column is None or not self._is_of_type(column, types, subjects, depth):
                row = AttributeRow(*self._readers.attribute.unpack_from(packed, at))
                if row.number > count:
                    continue
                described = None if row.dropped else self._type_of(row.type_oid, types, subjects, depth, row=row)
                column = self._column(row, described, packed)
                if not row.has_missing:
                    self._interner.keep_column(attribute, column)
            columns[column.number] = column
        if columns.keys() != set(range(1, count + 1)):
            raise Incomplete(f"relation {oid} has {len(columns)} of {count} columns")
        return tuple(columns[number] for number in range(1, count + 1))

    def _type_of(
        self,
        oid: Oid,
        types: dict[Oid, TypeDescription],
        subjects: set[Subject],
        depth: int,
        *,
        row: AttributeRow | None = None,
    ) -> TypeDescription:
        """Return the type of a column, from `types` or described and added there, and add its subjects.

        Raise `NoType` if it does not exist and `row` is not given.
        """
        found = types.get(oid)
        if found is None:
            described = self.type(oid, depth) if row is None else self._type_in(row, oid, depth)
            subjects |= described.subjects
            found = types[oid] = described.type
        return found

    def _is_of_type(
        self, column: Column, types: dict[Oid, TypeDescription], subjects: set[Subject], depth: int
    ) -> bool:
        """Return whether a column's cached type is still current."""
        try:
            return column.type is None or self._type_of(column.type.oid, types, subjects, depth) is column.type
        except NoType:
            return False

    def _column(self, row: AttributeRow, described: TypeDescription | None, packed: bytes) -> Column:
        layout = self._store.heaps[PG_ATTRIBUTE.oid].layout
        span = layout.locate(packed, "attmissingval") if row.has_missing else None
        return Column(
            number=row.number,
            name=self._name(row.name),
            type=described,
            typmod=row.typmod,
            length=row.length,
            by_value=row.by_value,
            align=ALIGNS[row.align],
            not_null=row.not_null,
            dropped=row.dropped,
            generated=row.generated.strip(b"\0").decode("ascii"),
            missing=packed[span[0] : span[1]] if span is not None else None,
        )

    def _keys(self, oid: Oid, identity: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the column numbers of the primary key and of the replica identity (`RelationGetIndexList`).

        A deferrable key does not count: within a transaction, or an update of many rows, rows may have equal keys.
        """
        primary_key: tuple[int, ...] = ()
        chosen: tuple[int, ...] = ()
        for packed in self._rows(PG_INDEX, "indrelid", oid):
            row = IndexRow(*self._readers.index.unpack_from(packed, data_at(packed)))
            usable = row.valid and row.live and row.unique and row.immediate
            if row.primary and row.live and row.immediate:
                primary_key = self._key_columns(packed, row.key_count)
                if identity == b"d" and usable:
                    chosen = primary_key
            if row.replica_identity and identity == b"i" and usable:
                chosen = self._key_columns(packed, row.key_count)
        return primary_key, chosen

    def index_oids(self, oid: Oid) -> Iterator[Oid]:
        """Yield the OIDs of a relation's indexes."""
        for packed in self._rows(PG_INDEX, "indrelid", oid):
            (index_oid,) = self._readers.index_oid.unpack_from(packed, data_at(packed))
            yield Oid(index_oid)

    def _key_columns(self, packed: bytes, count: int) -> tuple[int, ...]:
        span = self._store.heaps[PG_INDEX.oid].layout.locate(packed, "indkey")
        assert span is not None, "indkey is never null"
        numbers: tuple[int, ...] = struct.unpack_from(f"<{count}h", packed, span[0] + _INT2VECTOR_VALUES_AT)
        return numbers

    def _parent(self, oid: Oid) -> Oid:
        """Return a partition's parent; None while DETACH CONCURRENTLY finishes: its parent no longer shows it."""
        packed = next(self._rows(PG_INHERITS, "inhrelid", oid), None)
        if packed is None:
            return INVALID_OID
        parent, is_detaching = self._readers.inherits.unpack_from(packed, data_at(packed))
        return INVALID_OID if is_detaching else Oid(parent)

    @staticmethod
    def _ancestors(parent: Oid, above: Above, subjects: set[Subject]) -> tuple[Relation, ...]:
        subjects.add(Subject(PG_CLASS.oid, parent))
        described = above(parent)
        if described is None:
            raise Incomplete(f"the partitioned table {parent} is missing")
        subjects |= described.subjects
        return (replace(described.relation, ancestors=()), *described.relation.ancestors)

    def _labels(self, oid: Oid) -> tuple[EnumLabel, ...]:
        labels = []
        for packed in self._rows(PG_ENUM, "enumtypid", oid):
            label_oid, sort_order, label = self._readers.enum.unpack_from(packed, data_at(packed))
            labels.append(EnumLabel(Oid(label_oid), sort_order, self._name(label)))
        return tuple(sorted(labels, key=lambda label: label.sort_order))

    def _range(self, column: str, oid: Oid) -> tuple[Oid, Oid]:
        """Return subtype and range type from the row of pg_range whose `column` is `oid`."""
        packed = next(self._rows(PG_RANGE, column, oid), None)
        if packed is None:
            raise Incomplete(f"range of type {oid} is missing")
        range_oid, subtype = self._readers.range.unpack_from(packed, data_at(packed))
        return Oid(subtype), Oid(range_oid)

    def _schema(self, oid: Oid) -> str | None:
        """Return the name of a schema; None if it does not exist.

        NB: DROP SCHEMA does not see what moves into the schema meanwhile without a lock on it, as by ALTER TYPE.
        """
        packed = next(self._rows(PG_NAMESPACE, "oid", oid), None)
        if packed is None:
            return None
        return intern(self._name(self._readers.namespace.unpack_from(packed, data_at(packed))[0]))

    def _is_catalogs(self, catalog: CatalogId, column: str, name: bytes) -> bool:
        """Return whether pg_catalog has a type or relation of that name, which is found before one in public."""
        at = self._store.heaps[catalog.oid].layout.offsets[_NAME_OF[catalog.oid]]
        rows = self._rows(catalog, column, PG_CATALOG_OID)
        return any(packed.startswith(name, data_at(packed) + at) for packed in rows)

    def _rows(self, catalog: CatalogId, column: str, key: int) -> Iterator[bytes]:
        return self._store.heap(catalog, self._top_xid).find(column, key, self._snapshot)

    def _name(self, padded: bytes) -> str:
        return decode_text(name_text(padded), self._encoding)
