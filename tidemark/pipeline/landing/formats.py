"""Opens a lake in the format that was given; a lake keeps the format with which it was created."""

from importlib import import_module

from tidemark.io.host.extras import ICEBERG
from tidemark.model.errors import ConfigError
from tidemark.pipeline.lake.lake_kind import has_catalog, has_delta_positions
from tidemark.pipeline.landing.delta_landing import DeltaLanding
from tidemark.pipeline.landing.landing import Landing, LandingParts
from tidemark.pipeline.landing.settings import LakeFormat
from tidemark.pipeline.storage.stores import is_remote

IN_FOLDERS = "the catalog of a lake of Iceberg tables is a file: give a folder of a local file system"


class OtherFormat(ConfigError):
    """A lake has tables of another format."""

    hint = "give each format a separate lake, and a separate reader of the outbox (--reader)"


def opened_landing(parts: LandingParts) -> Landing:
    """Open the lake; raise `OtherFormat` if its tables have another format than the settings say."""
    settings = parts.settings
    if settings.lake_format is LakeFormat.DELTA:
        if has_catalog(settings.lake):
            raise OtherFormat(f"{settings.lake} is a lake of Iceberg tables: use --format iceberg")
        return DeltaLanding(parts)
    if is_remote(settings.lake):
        raise OtherFormat(f"{settings.lake} is in an object store, and --format is iceberg", hint=IN_FOLDERS)
    if has_delta_positions(settings.lake):
        raise OtherFormat(f"{settings.lake} is a lake of Delta tables, and --format is iceberg")
    ICEBERG.require()
    # NB: the extra is optional, so its packages are imported only here.
    landing: Landing = import_module("tidemark.pipeline.landing.iceberg_landing").IcebergLanding(parts)
    return landing
