"""The options of the format `tidemark.archive`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidemark.model.commit_time import CommitTime, parse_lsn_or_time
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import Lsn

ARCHIVE_FORMAT = "tidemark.archive"
_NAMES = ("archive", "state", "baseBackup", "table", "from", "to")
_REQUIRED = ("archive", "table")


@dataclass(frozen=True)
class ArchiveOptions:
    """The options of one query: a table in [begin, end) of an archive, open at an end that is None."""

    archive: Path
    table: str
    state: Path | None = None
    base_backup: Path | None = None  # from which the state is made that does not exist
    begin: Lsn | CommitTime | None = None
    end: Lsn | CommitTime | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "ArchiveOptions":
        """Parse the options, whose names Spark may pass in lower case; raise `ConfigError`."""
        given = {("archive" if name.lower() == "path" else name.lower()): text for name, text in options.items()}
        unknown, missing = (
            sorted(given.keys() - {name.lower() for name in _NAMES}),
            [name for name in _REQUIRED if not given.get(name)],
        )
        hint = f"its options are {', '.join(_NAMES)}"
        if unknown:
            raise ConfigError(f"format {ARCHIVE_FORMAT!r} has no option {', '.join(unknown)}", hint=hint)
        if missing:
            raise ConfigError(f"format {ARCHIVE_FORMAT!r} requires the option {', '.join(missing)}", hint=hint)
        state, backup = given.get("state"), given.get("basebackup")
        if not state and not backup:
            raise ConfigError(f"format {ARCHIVE_FORMAT!r} requires the option state, or baseBackup", hint=hint)
        return cls(
            Path(given["archive"]),
            given["table"],
            Path(state) if state else None,
            Path(backup) if backup else None,
            parse_lsn_or_time(given["from"]) if given.get("from") else None,
            parse_lsn_or_time(given["to"]) if given.get("to") else None,
        )

    @property
    def state_folder(self) -> Path:
        """Return the folder of the state, which exists."""
        assert self.state is not None, "it was made"
        return self.state
