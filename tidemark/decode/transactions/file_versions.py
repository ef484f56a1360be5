"""The relation version of each file whose rows `extract` may read, as all transactions see it or as one does.

A transaction that has changed a catalog sees separate versions: a table that it created or altered, the new file of
one that it truncated, the transient heap of a rewrite. An entry is a number, see `FIRST_VERSION`; 0: not known.

Cython compiles the module if a compiler is available (its `.pxd` has the types); interpreted, it does the same.
"""

from __future__ import annotations

from tidemark.decode.datum.lookup import IntegerMap

NO_ROWS = 1  # its rows are skipped: a catalog that is not tracked, a sequence
HAS_CHUNKS = 2  # its rows are chunks of other rows' values: a TOAST table
FIRST_VERSION = 3  # from here on, number of the relation version plus this; below 0: -1 minus it, rows without tuples
OWN_IS_REWRITE = 1  # bit of an own file's number, below that of the version: its rows are those of a rewrite


class FileVersions:
    """The known files."""

    def __init__(self) -> None:
        self.versions = IntegerMap()  # by database and relfilenode
        self.tablespaces = IntegerMap()  # of the same files
        self.passed = IntegerMap()  # to the tablespace: files in which rows of passed-over transactions are skipped
        self.catalogs = IntegerMap()  # to a number above 0: files of tracked catalogs
        self.catalog_tablespaces = IntegerMap()  # of the same files
        self.own_versions = IntegerMap()  # by top-level xid and relfilenode
        self.own_databases = IntegerMap()  # of the same files
        self.own_tablespaces = IntegerMap()

    def forget(self) -> None:
        """Forget all files but those of single transactions."""
        self.versions = IntegerMap()
        self.tablespaces = IntegerMap()
        self.passed = IntegerMap()
        self.catalogs = IntegerMap()
        self.catalog_tablespaces = IntegerMap()

    def forget_own(self) -> None:
        """Forget the files of single transactions."""
        self.own_versions = IntegerMap()
        self.own_databases = IntegerMap()
        self.own_tablespaces = IntegerMap()

    def set(self, spc: int, db: int, rel: int, value: int) -> None:
        """Set the entry of a file for all transactions that have changed no catalog."""
        self.versions.put(db << 32 | rel, value)
        self.tablespaces.put(db << 32 | rel, spc)

    def set_own(self, top: int, spc: int, db: int, rel: int, value: int) -> None:
        """Set the entry of a file for one top-level transaction; 0 removes it."""
        self.own_versions.put(top << 32 | rel, value)
        self.own_databases.put(top << 32 | rel, db if value else 0)
        self.own_tablespaces.put(top << 32 | rel, spc if value else 0)

    def set_passed(self, spc: int, db: int, rel: int) -> None:
        """Skip the rows of passed-over transactions in a file that is no catalog."""
        self.passed.put(db << 32 | rel, spc)

    def set_catalog(self, spc: int, db: int, rel: int, number: int) -> None:
        """Give the file of a tracked catalog a number above 0."""
        self.catalogs.put(db << 32 | rel, number)
        self.catalog_tablespaces.put(db << 32 | rel, spc)

    def of(self, spc: int, db: int, rel: int) -> int:
        """Return the entry of a file for all transactions."""
        key = db << 32 | rel
        value = self.versions.get(key)
        return value if value != 0 and self.tablespaces.get(key) == spc else 0

    def of_own(self, top: int, spc: int, db: int, rel: int) -> int:
        """Return the entry of a file for one top-level transaction."""
        key = top << 32 | rel
        value = self.own_versions.get(key)
        is_same = value != 0 and self.own_databases.get(key) == db and self.own_tablespaces.get(key) == spc
        return value if is_same else 0

    def is_passed(self, spc: int, db: int, rel: int) -> int:
        """Return whether rows of passed-over transactions are skipped in a file that is not known otherwise."""
        return 1 if self.passed.get(db << 32 | rel) == spc else 0

    def catalog(self, spc: int, db: int, rel: int) -> int:
        """Return the number of a tracked catalog's file; 0 if it is not known as one."""
        key = db << 32 | rel
        value = self.catalogs.get(key)
        return value if value != 0 and self.catalog_tablespaces.get(key) == spc else 0
