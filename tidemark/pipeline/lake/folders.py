"""The folders of a lake: `<database>/<schema>/<table>`, and `<database>/messages`; an OID only to distinguish two.

A folder is chosen once, with the first names of its table and database, and recorded in the positions table: a rename
keeps it. Names that differ only by case count as equal, because a lake may be copied to a file system or a catalog that
ignores case. A lake of an earlier version keeps its layout, `<database>/<oid>-<schema.table>`, for new tables as well.

Folders are ASCII. NB: DuckDB 1.4.4 and Polars 2.1.0 open the files of a table by URL, and so find none below a folder
whose name has a letter outside of ASCII.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count

from tidemark.model.lsn import INVALID_OID, Oid
from tidemark.model.relation import Relation
from tidemark.pipeline.delta_log.commit_files import LOG_FOLDER
from tidemark.pipeline.lake.faults import FaultKind
from tidemark.pipeline.lake.positions.table_position import TableId, TablePosition
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.lake.tables.table_errors import LakeFailed
from tidemark.pipeline.storage.stores import store_of

LOG, REPLICA = "log", "replica"  # the Delta tables of a source table, below its folder
MESSAGES = "messages"  # the Delta table of a database's logical messages
_PUNYCODE = "xn--"  # as in domain names (RFC 5890)
_UNSAFE = re.compile(r"[^A-Za-z0-9_.\-\u0080-\U0010ffff]")
_UNSAFE_NUMBERED = re.compile(r"[^A-Za-z0-9_.-]")
_HIDDEN = ("_", ".", "-")  # at the start: hidden from readers of files, a relative path, or an option of a command
_NUMBERED_NAME_LENGTH = 80


def folder_name(name: str) -> str:
    """Return `name` as the name of a folder: letters and digits of ASCII, `_`, `.` and `-`, not hidden.

    Names in other alphabets are in Punycode, as in domain names; other characters become `_`. Different names may have
    the same folder name.
    """
    safe = _UNSAFE.sub("_", name)
    if not safe.isascii():
        safe = unicodedata.normalize("NFC", unicodedata.normalize("NFC", safe).casefold())
    if not safe.isascii():  # casefold makes a letter K of the sign for kelvins
        safe = _PUNYCODE + safe.encode("punycode").decode("ascii")
    safe = re.sub(r"\.$", "_", safe)
    return f"x{safe}" if safe.startswith(_HIDDEN) else safe


def table_app(capture: str, of: TableId, name: str) -> str:
    """Return the application under which the commits of a table's log or replica record their position."""
    return f"tidemark:{capture}:{of[0]}.{of[1]}:{name}"


def messages_app(capture: str, database: Oid) -> str:
    """Return the application of a database's log of messages."""
    return f"tidemark:{capture}:{database}:{MESSAGES}"


def _schema_folder(namespace: str) -> str:
    name = folder_name(namespace)
    return f"x{name}" if name.casefold() == MESSAGES else name  # no table is below the folder of another


def _numbered_folder(relation: Relation) -> str:
    """Return the folder of a table, below its database's, in the layout of earlier versions."""
    safe = _UNSAFE_NUMBERED.sub("_", relation.qualified_name)[:_NUMBERED_NAME_LENGTH]
    return f"{relation.oid}-{safe}"


def delta_tables(table: TablePosition) -> list[tuple[str, int]]:
    """Return folder and version of a table's Delta tables, except those that are not written."""
    both = ((LOG, table.log), (REPLICA, table.replica))
    return [
        (table.folder if table.relation == INVALID_OID else f"{table.folder}/{name}", target.recorded.version)
        for name, target in both
        if target.recorded.version >= 0 and (target.fault is None or target.is_faulty(FaultKind.DEFERRED))
    ]


class LakeFolders:
    """Chooses the folders of new tables; call `choose` in stream order, so that a repeated batch chooses the same."""

    def __init__(
        self,
        root: str,
        capture: str,
        databases: Mapping[Oid, str],
        tables: Mapping[TableId, TablePosition],
        *,
        leaving: Iterable[str],
        is_of_another: Callable[[TableId, str], bool] | None = None,
    ) -> None:
        """No table gets one of the folders that are `leaving`, until it is free.

        `is_of_another` finds a table of another relation in a folder below `root`; by default a Delta table.
        """
        self._root = root
        self._capture = capture
        self._databases = databases
        self._is_of_another = self._has_tables_of_others if is_of_another is None else is_of_another
        self._chosen: dict[TableId, str] = {}
        self._used = {folder.casefold() for folder in leaving}  # folders without case
        self._database_folders: dict[Oid, str] = {}
        self._is_numbered = False  # the layout of earlier versions
        for of, known in tables.items():
            self._keep(of, known.folder)
            name = known.folder.rpartition("/")[2]
            self._is_numbered |= of[1] != INVALID_OID and name.startswith(f"{of[1]}-") and known.folder.count("/") == 1

    def __getitem__(self, of: TableId) -> str:
        """Return the folder that was chosen."""
        return self._chosen[of]

    def choose(self, of: TableId, first: Relation | None) -> None:
        """Choose the folder of a table, or of a database's messages (None), unless it has one."""
        if of in self._chosen:
            return
        database = self._database(of[0])
        if first is None:
            self._keep(of, f"{database}/{MESSAGES}")
        elif self._is_numbered:
            self._keep(of, f"{database}/{_numbered_folder(first)}")
        else:
            folder = f"{database}/{_schema_folder(first.namespace)}/{folder_name(first.name)}"
            self._keep(of, next(name for name in _distinct(folder, of[1]) if not self._is_anothers(of, name)))

    def release(self, of: TableId) -> None:
        """Keep no folder for a removed table; another table gets it once it is free."""
        self._chosen.pop(of, None)

    def free(self, folder: str) -> None:
        """Let another table have a folder of which nothing is left."""
        self._used.discard(folder.casefold())

    def _keep(self, of: TableId, folder: str) -> None:
        self._chosen[of] = folder
        self._used.add(folder.casefold())
        self._database_folders.setdefault(of[0], folder.partition("/")[0])

    def _database(self, database: Oid) -> str:
        """Return the folder of a database: of its first table, else by its name."""
        if database in self._database_folders:
            return self._database_folders[database]
        used = {folder.casefold() for folder in self._database_folders.values()}
        name = folder_name(self._databases.get(database, str(database)))
        return next(one for one in _distinct(name, database) if one.casefold() not in used)

    def _is_anothers(self, of: TableId, folder: str) -> bool:
        return folder.casefold() in self._used or self._is_of_another(of, folder)

    def _has_tables_of_others(self, of: TableId, folder: str) -> bool:
        """Return whether there are Delta tables in a folder, and none is of the table `of` of this capture.

        Its own ones come from a batch that ended before its positions were written. A commit log without a commit is
        no table: a full disk leaves one, or a loss of power one whose commit is empty; the next attempt uses it.
        """
        uri = f"{self._root}/{folder}"
        found = [name for name in store_of(uri).folders(uri) if _has_commits(f"{uri}/{name}")]
        return bool(found) and not any(self._is_of(of, uri, name) for name in found)

    def _is_of(self, of: TableId, uri: str, name: str) -> bool:
        try:
            table = LakeTable(f"{uri}/{name}", table_app(self._capture, of, name))
        except LakeFailed:
            return False
        return table.recorded.token is not None


def _has_commits(uri: str) -> bool:
    store, log = store_of(uri), f"{uri}/{LOG_FOLDER}"
    try:
        return any(file.name.endswith(".json") and store.size(f"{log}/{file.name}") for file in store.files(log))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _distinct(name: str, oid: Oid) -> Iterator[str]:
    yield name
    yield f"{name}-{oid}"
    for number in count(2):
        yield f"{name}-{oid}-{number}"
