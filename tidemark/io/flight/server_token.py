"""The token of the outbox server: created by `cdcctl init`, or a file that the operator names."""

from pathlib import Path

from tidemark.io.flight.server_address import read_token
from tidemark.io.process.config import ServerConfig
from tidemark.io.process.secret_sources import make_key_file
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.secret import Secret


def server_token_path(config: ServerConfig, folder: StateFolder) -> Path:
    """Return the path of the token."""
    return Path(config.token_file) if config.token_file else folder.root / "server.token"


def make_server_token(config: ServerConfig, folder: StateFolder) -> None:
    """Create the token if there is none; an existing one, or one that the operator names, is checked and kept."""
    path = server_token_path(config, folder)
    if config.token_file or path.exists():
        load_server_token(config, folder)
        return
    make_key_file(path, folder)


def load_server_token(config: ServerConfig, folder: StateFolder) -> Secret:
    """Return the token; raise `BadToken` if it is missing, unfit, or readable by other users."""
    return read_token(server_token_path(config, folder), "the token of the server")
