"""Which store a path of a lake is in, and the Delta tables there.

A process opens the object stores of its lakes once, by their URLs; all else is the local file system. delta-rs, too,
finds a store by the URL of a table.
"""

import os
from collections.abc import Mapping

from deltalake import DeltaTable

from tidemark.io.process.lake_config import LakeConfig
from tidemark.model.errors import InternalError
from tidemark.pipeline.storage.credentials import CredentialSource
from tidemark.pipeline.storage.lake_store import LakeStore
from tidemark.pipeline.storage.local_store import LocalStore
from tidemark.pipeline.storage.object_client import DEFAULT_LIMITS, RequestLimits
from tidemark.pipeline.storage.object_store import ObjectStore
from tidemark.pipeline.storage.store_options import ENDPOINT_OF_S3, StoreOptions, store_options

_LOCAL = LocalStore()
_OPENED: dict[str, ObjectStore] = {}


def is_remote(uri: str) -> bool:
    """Return whether a lake, or a path of it, is in an object store."""
    return "://" in uri


def open_lake(
    root: str, config: LakeConfig, environment: Mapping[str, str] = os.environ, limits: RequestLimits = DEFAULT_LIMITS
) -> LakeStore:
    """Return the store of the lake at `root`, from then on also for `store_of`; raise `BadStore` for wrong options."""
    if not is_remote(root):
        return _LOCAL
    options = store_options(config, environment)
    _hide_overrides(options)
    source = CredentialSource(options.credentials_file, environment)
    _OPENED[root] = ObjectStore(root, options, source, limits)
    return _OPENED[root]


def _hide_overrides(options: StoreOptions) -> None:
    """Remove the variables that obstore and delta-rs would prefer to `options`, or join to the credentials of a file.

    NB: both read the environment themselves, whatever options they are given.
    """
    if options.endpoint and os.environ.get(ENDPOINT_OF_S3) != options.endpoint:
        os.environ.pop(ENDPOINT_OF_S3, None)
    os.environ.pop("AWS_SKIP_SIGNATURE", None)
    if options.credentials_file:
        os.environ.pop("AWS_SESSION_TOKEN", None)


def store_of(uri: str) -> LakeStore:
    """Return the store of a path of a lake."""
    if not is_remote(uri):
        return _LOCAL
    for root, store in _OPENED.items():
        if uri == root or uri.startswith(f"{root}/"):
            return store
    raise InternalError(f"the store of {uri} was not opened")


def storage_options(uri: str) -> dict[str, str] | None:
    """Return delta-rs's options for the table at `uri`."""
    options = store_of(uri).delta_options()
    return None if options is None else dict(options)


def open_delta(uri: str, version: int | None = None) -> DeltaTable:
    """Open the Delta table at `uri`, or an older version of it."""
    return DeltaTable(uri, version=version, storage_options=storage_options(uri))
