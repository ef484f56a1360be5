"""The position of a whole lake of Iceberg tables, and of each of its tables, in the catalog.

They are properties of one namespace, which are changed in one transaction of the catalog. They are written last in
every batch, so they never claim more than the tables contain.
"""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyiceberg.catalog.sql import SqlCatalog

from tidemark.model.lsn import Lsn, Oid, TimelineId
from tidemark.model.position import NO_SEQUENCE, Position
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.delta_log.applied import NOTHING, Applied
from tidemark.pipeline.delta_log.lineage import NEVER_WRITTEN, Recorded
from tidemark.pipeline.lake.faults import LakeEntry
from tidemark.pipeline.lake.positions import LakeOfAnother, TableId, TablePosition, TableState
from tidemark.wire.json_form import JsonForm
from tidemark.wire.state import Identity

NAMESPACE = ("_tidemark",)
_LAKE = "lake"
_TABLE = "table."


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


_LAKE_FORM: JsonForm[_LakeForm] = JsonForm(_LakeForm)
_TABLE_FORM: JsonForm[_TableForm] = JsonForm(_TableForm)


class CatalogPositions:
    """The positions of one lake; raises `LakeOfAnother` if the lake belongs to another than `identity`."""

    def __init__(self, root: str, catalog: SqlCatalog, identity: Identity) -> None:
        self._catalog = catalog
        self.tables: Mapping[TableId, TablePosition] = {}
        self.snapshots: Mapping[TableId, int | None] = {}
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
            self._write({_LAKE: _LAKE_FORM.write(own)})
        forms = [_TABLE_FORM.read(text.encode()) for key, text in found.items() if key.startswith(_TABLE)]
        self._keep(forms)

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
        lake = _LakeForm(
            known.id,
            known.capture,
            known.system_identifier,
            outbox,
            applied.sequence,
            at.timeline,
            at.commit_lsn,
            at.ordinal,
        )
        forms = [_form(table, snapshot) for table, snapshot in touched]
        updates = {f"{_TABLE}{form.database}.{form.relation}": _TABLE_FORM.write(form) for form in forms}
        self._write({**updates, _LAKE: _LAKE_FORM.write(lake)})
        self._lake = lake
        self._keep(forms)

    def _write(self, updates: Mapping[str, bytes]) -> None:
        texts = {key: value.decode() for key, value in updates.items()}
        self._catalog.update_namespace_properties(NAMESPACE, updates=texts)

    def _keep(self, forms: Iterable[_TableForm]) -> None:
        found = {(Oid(form.database), Oid(form.relation)): form for form in forms}
        self.tables = {**self.tables, **{of: _table(form) for of, form in found.items()}}
        self.snapshots = {**self.snapshots, **{of: form.snapshot for of, form in found.items()}}


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
    )


def _position(form: _LakeForm | _TableForm) -> Position:
    return Position(TimelineId(form.timeline), Lsn(form.commit_lsn), form.ordinal)
