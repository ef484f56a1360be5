"""Reads the layouts of the catalogs from the raw pages of pg_attribute, for a mirror that begins without a server.

pg_attribute's own layout is fixed for a major (`tidemark.wal.data_directory`); the others are in its rows, which
nothing changes after initdb. So the first version of each row that is found is right, whether visible or not.
"""

from collections.abc import Iterable, Sequence

from tidemark.decode.catalog.layout import (
    CATALOG_OF_OID,
    PG_ATTRIBUTE,
    CatalogColumn,
    CatalogLayout,
    data_at,
    name_text,
)
from tidemark.decode.catalog.seeding.seed import ColumnRow
from tidemark.model.lsn import Oid
from tidemark.wal.data_directory import BackupUnusable, directory_format
from tidemark.wal.rmgr import heap

_TYPES = {  # OID, typlen, typalign (pg_type.dat)
    "bool": (16, 1, "c"),
    "char": (18, 1, "c"),
    "name": (19, 64, "c"),
    "int2": (21, 2, "s"),
    "int4": (23, 4, "i"),
    "oid": (26, 4, "i"),
    "_text": (1009, -1, "i"),
    "_aclitem": (1034, -1, "i"),
    "anyarray": (2277, -1, "d"),
}
_WANTED = ("attrelid", "attname", "atttypid", "attlen", "attnum", "attalign", "attnotnull")


def attribute_layout(major: int) -> CatalogLayout:
    """Return the layout of pg_attribute in `major`."""
    columns = []
    for number, attribute in enumerate(directory_format(major).attribute.split(), 1):
        name, _, type_name = attribute.partition(":")
        type_oid, length, align = _TYPES[type_name.rstrip("?")]
        not_null = length > 0 and not type_name.endswith("?")
        columns.append(CatalogColumn(number, name, Oid(type_oid), length, align, not_null))
    return CatalogLayout(PG_ATTRIBUTE, columns)


def columns_of(pages: Iterable[bytes], major: int) -> Sequence[ColumnRow]:
    """Return the columns of the catalogs, in order, from the pages of pg_attribute."""
    layout = attribute_layout(major)
    reader = layout.projection(*(name for name in layout.offsets if name in _WANTED))
    found: dict[tuple[int, int], ColumnRow] = {}
    for page in pages:
        for _offset, packed, _xmin, _xmax in heap.page_tuples(page):
            if layout.fits(packed):
                catalog, name, type_oid, length, number, align, not_null = reader.unpack_from(packed, data_at(packed))
                if catalog in CATALOG_OF_OID and number > 0:
                    column = (catalog, number, name_text(name).decode(), type_oid, length, align.decode(), not_null)
                    found.setdefault((catalog, number), column)
    missing = [catalog.name for catalog in CATALOG_OF_OID.values() if (catalog.oid, 1) not in found]
    if missing:
        raise BackupUnusable(f"the columns of {', '.join(missing)} are not in pg_attribute's file")
    return [found[key] for key in sorted(found)]
