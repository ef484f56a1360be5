"""Connection strings: parsed, checked for secrets, completed, and described for logs.

A DSN comes from an argument or a configuration file, where others can read it, so it never contains a password: libpq
takes that from PGPASSFILE, a service file or the environment.
"""

import os
import stat
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tidemark.model.errors import ConfigError

APPLICATION_NAME = "tidemark"
CONNECT_TIMEOUT_S = 10  # for each connection; libpq waits without limit by default
PORT_MAX = 65_535
PORT_HINT = (
    "a port is a number from 1 to 65535; in a URL, write an IPv6 address in brackets: postgresql://user@[::1]/shop"
)
_SECRETS = ("password", "sslpassword", "oauth_client_secret")
_SHOWN = ("host", "hostaddr", "port", "dbname", "user", "service")


class BadDsn(ConfigError):
    """A connection string that libpq rejects."""

    hint = "write postgresql://user@host:port/database, or keywords: host=... port=... dbname=... user=..."


class SecretInDsn(ConfigError):
    """A connection string that contains a password."""

    hint = (
        "remove the password and put it into a file of mode 0600 that PGPASSFILE names "
        "(host:port:database:user:password, * as database for several), or use a certificate"
    )


class SecretFileUnusable(ConfigError):
    """A password file that is unreadable, or readable by others: libpq ignores it, with at most a warning."""

    hint = "the file that PGPASSFILE or passfile names must be readable only by this user: chmod 0600"


def parse_dsn(dsn: str) -> dict[str, str]:
    """Return the keywords of `dsn`; raise if libpq rejects them or one of them is a secret."""
    try:
        keywords = {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
    except psycopg.Error as error:
        # NB: libpq's message quotes the DSN, which may contain a password.
        raise BadDsn("the connection string cannot be parsed") from _without_text(error)
    for name in _SECRETS:
        if name in keywords:
            raise SecretInDsn(f"the connection string contains a {name}")
    for port in filter(None, keywords.get("port", "").split(",")):
        if not (port.isdecimal() and 0 < int(port) <= PORT_MAX):
            raise BadDsn(f"the connection string has the port {port!r}", hint=PORT_HINT)
    if "replication" in keywords:
        raise BadDsn("the connection string contains replication", hint="omit it: it is set where it is needed")
    return keywords


def complete_dsn(dsn: str, *, database: str | None = None, options: str = "", **keywords: str | int) -> str:
    """Return `dsn` with our application name, a default connect timeout, and `keywords` over its keywords."""
    parsed = parse_dsn(dsn)
    _check_passfile(parsed.get("passfile") or os.environ.get("PGPASSFILE"))
    parsed.setdefault("connect_timeout", str(CONNECT_TIMEOUT_S))
    parsed.setdefault("fallback_application_name", APPLICATION_NAME)
    if database is not None:
        parsed["dbname"] = database
    if options:
        parsed["options"] = f"{parsed.get('options', '')} {options}".strip()
    return make_conninfo("", **{**parsed, **{name: str(value) for name, value in keywords.items()}})


def with_connect_timeout(dsn: str, timeout_s: int) -> str:
    """Return `dsn` with a connect timeout, unless it has a shorter one."""
    parsed = parse_dsn(dsn)
    given = parsed.get("connect_timeout", "")
    if given.isdecimal() and 0 < int(given) <= timeout_s:
        return dsn
    return make_conninfo("", **{**parsed, "connect_timeout": str(timeout_s)})


def describe_dsn(dsn: str) -> str:
    """Return the parts of `dsn` that may be shown: host, port, database and user."""
    keywords = parse_dsn(dsn)
    return (
        " ".join(f"{name}={keywords[name]}" for name in _SHOWN if name in keywords)
        or "libpq's defaults, since the DSN is empty"
    )


def _check_passfile(named: str | None) -> None:
    """Raise for a configured password file that libpq would ignore."""
    if not named:
        return
    path = Path(named)
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise SecretFileUnusable(f"cannot read the password file {path}: {error.strerror}") from error
    if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SecretFileUnusable(f"the password file {path} is readable by other users: mode {stat.S_IMODE(mode):04o}")


def _without_text(error: psycopg.Error) -> Exception:
    return type(error)("libpq refused it")
