"""The client of a bucket, for obstore and for delta-rs: with the present credentials, and with bounded requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING

from obstore.store import S3Store

from tidemark.pipeline.storage.credentials import CredentialSource
from tidemark.pipeline.storage.lake_store import READ_BYTES_MAX
from tidemark.pipeline.storage.role_credentials import Credentials
from tidemark.pipeline.storage.store_options import StoreOptions

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Credential


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The bounds of one request, with its repetitions; all of them are made again by the pipeline, which waits."""

    connect_s: float = 5.0
    answer_s: float = 60.0  # 16 MB at 270 kB/s
    retries_max: int = 4
    retry_s: float = 20.0
    backoff_s: float = 0.1
    backoff_s_max: float = 3.0
    read_bytes_max: int = READ_BYTES_MAX  # of an object that is read as a whole, as a commit
    parquet_bytes_max: int = 64 << 20  # of a Parquet file that is read with one request; of a larger one, ranges


DEFAULT_LIMITS = RequestLimits()


class ObjectClient:
    """The client of one bucket; used by several threads."""

    def __init__(self, bucket: str, options: StoreOptions, source: CredentialSource, limits: RequestLimits) -> None:
        self._bucket = bucket
        self._options = options
        self._source = source
        self._limits = limits
        self._lock = Lock()  # of the next two
        self._credentials: Credentials | None = None
        self._access = 0
        self._client = self.opened()

    def opened(self) -> S3Store:
        """Return the client, a new one if the credentials were renewed."""
        credentials = self._source.current()
        with self._lock:
            if credentials != self._credentials:
                self._client = self._connected(credentials)
                self._credentials, self._access = credentials, self._access + 1
            return self._client

    def _connected(self, credentials: Credentials) -> S3Store:
        limits = self._limits
        config: S3Config = {"region": self._options.region, "virtual_hosted_style_request": False}
        if self._options.endpoint:
            config["endpoint"] = self._options.endpoint

        def provide() -> "S3Credential":  # NB: not by options, which the environment would complete
            key: S3Credential = {
                "access_key_id": credentials.key,
                "secret_access_key": credentials.secret,
                "token": credentials.token or None,
                "expires_at": None,
            }
            return key

        return S3Store(
            self._bucket,
            config=config,
            client_options={
                "allow_http": self._options.is_plain,
                "connect_timeout": timedelta(seconds=limits.connect_s),
                "timeout": timedelta(seconds=limits.answer_s),
            },
            retry_config={
                "max_retries": limits.retries_max,
                "retry_timeout": timedelta(seconds=limits.retry_s),
                "backoff": {
                    "init_backoff": timedelta(seconds=limits.backoff_s),
                    "max_backoff": timedelta(seconds=limits.backoff_s_max),
                    "base": 2,
                },
            },
            credential_provider=provide,
        )

    def delta_options(self) -> Mapping[str, str]:
        """Return delta-rs's options, with the present credentials."""
        self.opened()
        credentials, limits = self._source.current(), self._limits
        options = {
            "aws_region": self._options.region,
            "aws_access_key_id": credentials.key,
            "aws_secret_access_key": credentials.secret,
            "aws_conditional_put": "etag",
            "aws_virtual_hosted_style_request": "false",
            "allow_http": str(self._options.is_plain).lower(),
            "connect_timeout": f"{limits.connect_s}s",
            "timeout": f"{limits.answer_s}s",
            "max_retries": str(limits.retries_max),
            "retry_timeout": f"{limits.retry_s}s",
            "backoff_config.init_backoff": f"{limits.backoff_s}s",
            "backoff_config.max_backoff": f"{limits.backoff_s_max}s",
        }
        if self._options.endpoint:
            options["aws_endpoint"] = self._options.endpoint
        if credentials.token:
            options["aws_session_token"] = credentials.token
        return options

    def access(self) -> int:
        """Return the number of the present credentials."""
        self.opened()
        return self._access
