"""Secrets from files and from the environment. Their bytes never appear in a message or a log."""

import os
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from tidemark.io.host.disk import sync, write_all, writing
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ConfigError
from tidemark.model.secret import Secret

KEY_BYTES_MIN = 16  # 128 bits
_KEY_BYTES_MAX = 4096  # a key is one line; a larger file is another one, named by mistake
_OTHERS = 0o007
_MADE_BYTES = 32


class BadSecret(ConfigError):
    """A secret that is missing, too short or too long, or readable by other users."""

    hint = "to create a key: openssl rand -hex 32"


def secret_file(path: str | Path) -> Secret:
    """Return the text of a file, without surrounding white space, as a secret. Raise `BadSecret`."""
    return Secret(read_key(Path(path), "the secret", KEY_BYTES_MIN, BadSecret))


def secret_environment(name: str) -> Secret:
    """Return the value of an environment variable, without surrounding white space, as a secret."""
    if name not in os.environ:
        raise BadSecret(f"the environment variable {name}, which must contain a secret, is not set")
    return Secret(_checked(os.environ[name].strip().encode(), f"the variable {name}", KEY_BYTES_MIN, BadSecret))


def read_key(path: Path, what: str, bytes_min: int, error_class: type[ConfigError]) -> bytes:
    """Return the text of a file without the white space around it; raise an error of the class if it is unfit."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_KEY_BYTES_MAX + 1)
    except OSError as error:
        raise error_class(f"{what}, {path}, cannot be read: {error.strerror}") from error
    if stat.S_IMODE(mode) & _OTHERS:
        raise error_class(
            f"{what}, {path}, is accessible to all users of this host ({stat.S_IMODE(mode):04o})",
            hint=f"chmod o-rwx {path}, and consider replacing {what} wherever it is used",
        )
    return _checked(content.strip(), f"{what}, {path},", bytes_min, error_class)


def make_key_file(path: Path, folder: StateFolder) -> None:
    """Create a file of the state with a new key, and the folder, if there is none yet.

    Of two processes that create the file, the second one changes nothing.
    """
    with writing(path):
        folder.root.mkdir(mode=folder.folder_mode, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f"{path.stem}.", suffix=".new", dir=path.parent)
        try:
            os.fchmod(descriptor, folder.file_mode)
            write_all(descriptor, f"{secrets.token_hex(_MADE_BYTES)}\n".encode())
            os.fsync(descriptor)
            with suppress(FileExistsError):  # NB: linked, not renamed: a rename would replace the first one's key
                path.hardlink_to(temporary)
        finally:
            os.close(descriptor)
            Path(temporary).unlink()
        sync(path.parent)


def _checked(key: bytes, what: str, bytes_min: int, error_class: type[ConfigError]) -> bytes:
    if not bytes_min <= len(key) <= _KEY_BYTES_MAX:
        raise error_class(f"{what} has {len(key)} bytes; it must have {bytes_min} to {_KEY_BYTES_MAX}")
    return key
