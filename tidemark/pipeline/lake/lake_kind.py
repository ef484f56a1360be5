"""Which format the tables of a lake have, by the files at its root."""

from pathlib import Path

from tidemark.pipeline.lake.positions.positions import FOLDER as POSITIONS

CATALOG_FILE = "catalog.db"  # of a lake of Iceberg tables


def has_catalog(root: str) -> bool:
    """Return whether the folder is a lake of Iceberg tables."""
    return (Path(root) / CATALOG_FILE).exists()


def has_delta_positions(root: str) -> bool:
    """Return whether the folder is a lake of Delta tables."""
    return (Path(root) / POSITIONS).exists()
