"""The reasons why the rows at a moment cannot be written."""

from tidemark.model.errors import ConfigError


class ReplayRefused(ConfigError):
    """The lake does not show what the table contained at that moment."""

    hint = (
        "choose a later moment, or recover a base backup of the node to it (recovery_target_lsn, recovery_target_time)"
    )


class TargetExists(ConfigError):
    """The folder of the result exists."""

    hint = "name a folder that does not exist yet"
