"""The reasons why the rows at a moment cannot be written."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from deltalake.exceptions import DeltaError

from tidemark.io.host.disk import StateFull
from tidemark.model.errors import ConfigError, StateError
from tidemark.pipeline.failures import first_reason
from tidemark.pipeline.lake.tables.table_errors import LakeFailed, unavailable_store
from tidemark.pipeline.storage.store_errors import StoreUnavailable


class ReplayRefused(ConfigError):
    """The lake does not show what the table contained at that moment."""

    hint = "choose a later moment, or read a base backup from before it: --base-backup and --archive in place of --lake"


class TargetExists(ConfigError):
    """The folder of the result exists."""

    hint = "name a folder that does not exist yet, or a prefix of a bucket without objects"


class TargetInUse(ConfigError):
    """Another replay writes the same result."""

    hint = "wait until it ends, or name another folder"


class LakeUnreadable(LakeFailed):
    """A table of the lake cannot be read."""

    hint = (
        "run the command again, which then reads the current version; if files are missing because the replay took "
        "longer than they are kept, set --log-keep-s of the pipeline to a longer time"
    )


class ResultNotWritten(StateError):
    """The result cannot be written."""

    hint = (
        "check that you may write to its folder or bucket, and that there is space: the result for an object store is "
        "first written to the folder of temporary files (TMPDIR)"
    )


@contextmanager
def reading(uri: str) -> Iterator[None]:
    """Translate the errors of reading a table of the lake.

    NB: a running pipeline commits to it meanwhile, which is no conflict: `LakeTable.reading` would report one.
    """
    try:
        yield
    except (DeltaError, OSError, pa.ArrowException) as error:
        unavailable = unavailable_store(error, uri)
        raise unavailable or LakeUnreadable(f"{uri} cannot be read: {first_reason(str(error))}") from error


@contextmanager
def writing_result(to: object) -> Iterator[None]:
    """Translate the errors of writing the result."""
    try:
        yield
    except (LakeFailed, StateFull, OSError, StoreUnavailable) as error:
        raise ResultNotWritten(f"{to} cannot be written: {first_reason(str(error))}") from error
