"""The credentials of an object store: of a file that is read again when it changes, of the environment, or of a role.

The file has the format of AWS tools (`[default]` or `[$AWS_PROFILE]`, with `aws_access_key_id`, `aws_secret_access_key`
and, for temporary credentials, `aws_session_token`), and mode 0600. A program that renews credentials replaces it. No
value of it is ever in an argument, a log or an error.
"""

import os
import stat
from collections.abc import Mapping
from configparser import ConfigParser, Error

from tidemark.pipeline.storage.role_credentials import Credentials, RoleCredentials
from tidemark.pipeline.storage.store_errors import BadStore

_KEY, _SECRET, _TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class CredentialSource:
    """Where credentials come from; used by several threads."""

    def __init__(self, file: str, environment: Mapping[str, str]) -> None:
        """Read the credentials; raise `BadStore` if there are none, or others may read the file."""
        self._file = file
        self._profile = environment.get("AWS_PROFILE") or "default"
        self._environment = environment
        self._stamp: tuple[int, ...] = ()
        self._file_fault = ""  # why the file that is there now is not used
        is_of_role = not file and not any(environment.get(name) for name in (_KEY, _SECRET))
        self._role = RoleCredentials(environment) if is_of_role else None
        if self._role is None:
            self._present = self._read_file() if file else self._of_environment()

    @property
    def fault(self) -> str:
        """Return why the present credentials are not renewed; "" if nothing is wrong."""
        return self._file_fault if self._role is None else self._role.fault

    def current(self) -> Credentials:
        """Return the present credentials: of a new file, if it is complete."""
        if self._role is not None:
            return self._role.current()
        if self._file:
            try:
                found = os.stat(self._file)  # noqa: PTH116 - called for each request
                if _stamp(found) != self._stamp:
                    self._present = self._read_file()
            except (BadStore, OSError) as error:
                self._file_fault = str(error)  # the file may be replaced at this moment
        return self._present

    def _of_environment(self) -> Credentials:
        key, secret = (self._environment.get(name, "") for name in (_KEY, _SECRET))
        if not key or not secret:
            raise BadStore(
                "there are no credentials for the object store",
                hint=f"set lake.store_credentials_file, or {_KEY} and {_SECRET} in the environment",
            )
        return Credentials(key, secret, self._environment.get(_TOKEN, ""))

    def _read_file(self) -> Credentials:
        try:
            with open(self._file, encoding="utf-8") as file:  # noqa: PTH123 - the mode is that of the open file
                found = os.fstat(file.fileno())
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise BadStore(f"the credentials file {self._file} cannot be read: {reason}") from None
        if found.st_mode & _OTHERS:
            raise BadStore(
                f"the credentials file {self._file} has mode {stat.S_IMODE(found.st_mode):04o}: others may read it",
                hint=f"chmod 600 {self._file}",
            )
        parser = ConfigParser(interpolation=None)
        try:
            parser.read_string(text)
            section = parser[self._profile]
            read = Credentials(
                section["aws_access_key_id"], section["aws_secret_access_key"], section.get("aws_session_token", "")
            )
        except (Error, KeyError):  # NB: the text of the error has a line of the file
            raise BadStore(
                f"the credentials file {self._file} has no section [{self._profile}] with aws_access_key_id and "
                "aws_secret_access_key"
            ) from None
        self._stamp, self._file_fault = _stamp(found), ""
        return read


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode
