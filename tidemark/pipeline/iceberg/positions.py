"""The position of a whole lake of Iceberg tables, and of each of its tables, in the catalog.

They are properties of one namespace, which are changed in one transaction of the catalog. They are written last in
every batch, so they never claim more than the tables contain.
"""

import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from pyiceberg.catalog.sql import IcebergNamespaceProperties as Property
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError
from sqlalchemy import delete, insert, update

from tidemark.model.change import NO_COMMIT_TIME
from tidemark.model.lsn import Lsn, Oid, SystemIdentifier, TimelineId
from tidemark.model.position import NO_SEQUENCE, Position
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.delta_log.applied import NOTHING, Applied
from tidemark.pipeline.delta_log.lineage import NEVER_WRITTEN, Recorded
from tidemark.pipeline.iceberg.translated import translated
from tidemark.pipeline.lake.faults import LakeEntry, LogBreak
from tidemark.pipeline.lake.positions.positions import LakeOfAnother
from tidemark.pipeline.lake.positions.table_position import TableId, TablePosition, TableState
from tidemark.pipeline.lake.tables.table_errors import TableFenced
from tidemark.wire.json_form import JsonForm
from tidemark.wire.state.values import Identity

NAMESPACE = ("_tidemark",)
_LAKE = "lake"
_TABLE = "table."
_LEAVING = "leaving."  # a folder that is being deleted; the value is the application of its table
_REMOVED = "removed_to"  # the position of the lake when a table was removed last


@dataclass(frozen=True, slots=True)
class _LakeForm:
    """The whole lake."""

    id: str
    capture: str
    system_identifier: str
    outbox: str = ""
    sequence: int = NO_SEQUENCE
    timeline: int = 0
    commit_lsn: int = 0
    ordinal: int = 0
    writes: int = 0  # a write that did not see the last one is another pipeline's


@dataclass(frozen=True, slots=True)
class _TableForm:
    """One table, or the messages of a database (relation 0)."""

    database: int
    relation: int
    namespace: str
    name: str
    folder: str
    state: str
    sequence: int
    timeline: int
    commit_lsn: int
    ordinal: int
    generation: int
    snapshot: int | None
    breaks: tuple[LogBreak, ...] = ()
    dropped_us: int = NO_COMMIT_TIME


@dataclass(frozen=True, slots=True)
class _PlaceForm:
    """A position."""

    timeline: int
    commit_lsn: int
    ordinal: int


_PLACE_FORM: JsonForm[_PlaceForm] = JsonForm(_PlaceForm)
_LAKE_FORM: JsonForm[_LakeForm] = JsonForm(_LakeForm)
_TABLE_FORM: JsonForm[_TableForm] = JsonForm(_TableForm)


def owner_of(catalog: SqlCatalog) -> Identity | None:
    """Return the capture whose lake a catalog is, as its identity without versions and outbox; None: it is no lake."""
    with translated("the catalog"):
        try:
            found = catalog.load_namespace_properties(NAMESPACE)
        except NoSuchNamespaceError:
            return None
    if _LAKE not in found:
        return None
    lake = _LAKE_FORM.read(found[_LAKE].encode())
    return Identity(lake.capture, SystemIdentifier(int(lake.system_identifier)), "", 0, 0, 0)


class CatalogPositions:
    """The positions of one lake; raises `LakeOfAnother` if the lake belongs to another than `identity`."""

    def __init__(self, root: str, catalog: SqlCatalog, identity: Identity) -> None:
        self._catalog = catalog
        self.tables: Mapping[TableId, TablePosition] = {}
        self.settled: Mapping[TableId, TablePosition] = {}  # none: a write concerns the rows that changed
        self.begins_late = ""  # why the lake lacks the first values of its outbox, until a batch is written
        self._where = f"the catalog of {root}"
        with translated(self._where):
            catalog.create_namespace_if_not_exists(NAMESPACE)
            found = catalog.load_namespace_properties(NAMESPACE)
        own = _LakeForm(uuid.uuid4().hex, identity.capture, str(identity.system_identifier))
        self._lake = _LAKE_FORM.read(found[_LAKE].encode()) if _LAKE in found else own
        known = self._lake
        if (known.capture, known.system_identifier) != (own.capture, own.system_identifier):
            other = f"capture {known.capture!r} of the cluster {known.system_identifier}"
            mine = f"{own.capture!r} of {own.system_identifier}"
            raise LakeOfAnother(f"{root} contains the tables of {other}, not of {mine}")
        if _LAKE not in found:
            with translated(self._where):
                catalog.update_namespace_properties(NAMESPACE, updates={_LAKE: _LAKE_FORM.write(own).decode()})
        forms = [_TABLE_FORM.read(text.encode()) for key, text in found.items() if key.startswith(_TABLE)]
        self._keep(forms)
        self.leaving = {
            key.removeprefix(_LEAVING): text for key, text in found.items() if key.startswith(_LEAVING)
        }  # folders of removed tables that are being deleted, with the application of each
        self.removed_to = (
            _position(_PLACE_FORM.read(found[_REMOVED].encode())) if _REMOVED in found else None
        )  # that of the lake when a table was removed last; None: none was

    @property
    def outbox(self) -> str:
        """Return the outbox of the last written batch; "" if there is none."""
        return self._lake.outbox

    @property
    def applied(self) -> Applied:
        """Return the applied position of the whole lake."""
        lake = self._lake
        if lake.sequence == NO_SEQUENCE:
            return NOTHING
        return Applied(OutboxSequence(lake.sequence), _position(lake))

    def lake_id(self) -> str:
        """Return the id of this lake; a lake that replaces it in the same folder has another id."""
        return self._lake.id

    def write(self, outbox: str, touched: Iterable[tuple[TablePosition, int | None]], applied: Applied) -> None:
        """Record the positions and snapshots of the `touched` tables, and `applied` for the whole lake."""
        at, known = applied.position, self._lake
        lake = replace(
            known,
            outbox=outbox,
            sequence=applied.sequence,
            timeline=at.timeline,
            commit_lsn=at.commit_lsn,
            ordinal=at.ordinal,
            writes=known.writes + 1,
        )
        forms = [_form(table, snapshot) for table, snapshot in touched]
        updates = {f"{_TABLE}{form.database}.{form.relation}": _TABLE_FORM.write(form) for form in forms}
        self._replace(lake, updates)
        self._keep(forms)

    def begin_removal(self, table: TablePosition, app: str) -> None:
        """Replace the position of a dropped table by its folder, which is deleted after that."""
        at = self.applied.position
        place = _PLACE_FORM.write(_PlaceForm(at.timeline, at.commit_lsn, at.ordinal))
        updates = {f"{_LEAVING}{table.folder}": app.encode(), _REMOVED: place}
        of = table.database, table.relation
        self._replace(replace(self._lake, writes=self._lake.writes + 1), updates, [f"{_TABLE}{of[0]}.{of[1]}"])
        self.tables = {key: known for key, known in self.tables.items() if key != of}
        self.leaving[table.folder], self.removed_to = app, at

    def end_removal(self, folder: str) -> None:
        """Name a folder no longer: nothing is left of it."""
        self._replace(replace(self._lake, writes=self._lake.writes + 1), {}, [f"{_LEAVING}{folder}"])
        del self.leaving[folder]

    def _replace(self, lake: _LakeForm, updates: Mapping[str, bytes], removed: Collection[str] = ()) -> None:
        """Write the properties in one transaction; raise `TableFenced` if the lake is not as it was written last.

        NB: pyiceberg's own update compares nothing, and reads all properties.
        """
        own = (Property.catalog_name == self._catalog.name, Property.namespace == ".".join(NAMESPACE))
        known, new = _LAKE_FORM.write(self._lake).decode(), _LAKE_FORM.write(lake).decode()
        is_known = (*own, Property.property_key == _LAKE, Property.property_value == known)
        rows = [
            {
                "catalog_name": self._catalog.name,
                "namespace": ".".join(NAMESPACE),
                "property_key": key,
                "property_value": value.decode(),
            }
            for key, value in updates.items()
        ]
        with translated(self._where), self._catalog.engine.begin() as connection:
            if connection.execute(update(Property).where(*is_known).values(property_value=new)).rowcount != 1:
                raise TableFenced(self._where, "it recorded other positions than this pipeline wrote")
            if rows or removed:
                keys = [*updates, *removed]
                connection.execute(delete(Property).where(*own, Property.property_key.in_(keys)))
            if rows:
                connection.execute(insert(Property), rows)
        self._lake = lake

    def _keep(self, forms: Iterable[_TableForm]) -> None:
        found = {(Oid(form.database), Oid(form.relation)): form for form in forms}
        self.tables = {**self.tables, **{of: _table(form) for of, form in found.items()}}


def snapshot_of(table: TablePosition) -> int | None:
    """Return the snapshot of a log that the positions record; None: it has none."""
    return int(table.log.recorded.id) if table.log.recorded.id else None


def _form(table: TablePosition, snapshot: int | None) -> _TableForm:
    at = table.position
    return _TableForm(
        table.database,
        table.relation,
        table.namespace,
        table.name,
        table.folder,
        table.state.value,
        table.sequence,
        at.timeline,
        at.commit_lsn,
        at.ordinal,
        table.generation,
        snapshot,
        table.breaks,
        table.dropped_us,
    )


def _table(form: _TableForm) -> TablePosition:
    written = NEVER_WRITTEN if form.snapshot is None else Recorded(0, str(form.snapshot))
    return TablePosition(
        Oid(form.database),
        Oid(form.relation),
        form.namespace,
        form.name,
        form.folder,
        TableState(form.state),
        OutboxSequence(form.sequence),
        _position(form),
        form.generation,
        LakeEntry(written),
        breaks=form.breaks,
        dropped_us=form.dropped_us,
    )


def _position(form: _LakeForm | _TableForm | _PlaceForm) -> Position:
    return Position(TimelineId(form.timeline), Lsn(form.commit_lsn), form.ordinal)
