"""The options of an object store: from the command line, `[lake]` of the configuration, and variables of AWS tools."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from tidemark.io.process.lake_config import LakeConfig
from tidemark.pipeline.storage.store_errors import BadStore

REGION_OF_ENDPOINT = "us-east-1"  # signed by requests to another store than AWS's, which ignores it
ENDPOINT_OF_S3 = "AWS_ENDPOINT_URL_S3"
_ENDPOINTS = (ENDPOINT_OF_S3, "AWS_ENDPOINT_URL")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_FILES = ("AWS_SHARED_CREDENTIALS_FILE",)


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How an object store is reached; there are no secrets here."""

    endpoint: str  # "": that of AWS for the region
    region: str
    credentials_file: str  # "": credentials come from the environment

    @property
    def is_plain(self) -> bool:
        """Return whether requests are sent without TLS."""
        return self.endpoint.startswith("http:")


def store_options(config: LakeConfig, environment: Mapping[str, str]) -> StoreOptions:
    """Return the options; raise `BadStore` if they are unusable."""
    endpoint = (config.store_endpoint or _first(environment, _ENDPOINTS)).rstrip("/")
    region = config.store_region or _first(environment, _REGIONS)
    if endpoint:
        _check_endpoint(endpoint, allow_http=config.store_allow_http)
    elif not region:
        raise BadStore("no region of the object store is given", hint="set lake.store_region, or AWS_REGION")
    file = config.store_credentials_file or _first(environment, _FILES)
    return StoreOptions(endpoint, region or REGION_OF_ENDPOINT, file)


def _check_endpoint(endpoint: str, *, allow_http: bool) -> None:
    if "@" in endpoint or "?" in endpoint:  # NB: first, and without the text, which may contain a secret
        raise BadStore(
            "lake.store_endpoint contains a user or a password, or a query: give credentials by the environment or a "
            "file"
        )
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise BadStore("lake.store_endpoint is not a URL: its host or port cannot be read") from None
    if parts.scheme not in ("http", "https") or not host or port == 0 or parts.path or parts.query or parts.fragment:
        raise BadStore(
            f"lake.store_endpoint is {endpoint}: it must be http:// or https:// with a host and optionally a port"
        )
    if parts.scheme == "http" and not allow_http and not _is_loopback(host):
        raise BadStore(
            f"lake.store_endpoint is {endpoint}: without TLS, anyone on the network path to {host} can read the lake",
            hint="use https://, or set lake.store_allow_http = true",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")
