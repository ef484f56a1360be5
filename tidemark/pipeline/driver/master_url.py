"""The forms of `--master` and `--driver-memory` that Spark accepts: its own refusal is a trace of the JVM."""

import re
from collections.abc import Mapping

from tidemark.model.errors import ConfigError

_ADDRESS = r"(?:[^:\[\]/,\s]+|\[[^\]]+\]):\d+"
_MASTER = re.compile(
    r"local"
    r"|local\[(?:\*|[1-9]\d*)(?:\s*,\s*\d+)?\]"  # threads, and attempts of a task
    r"|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"
    rf"|spark://{_ADDRESS}(?:,{_ADDRESS})*"
    r"|k8s://\S+"
    r"|yarn"
)
_MEMORY = re.compile(r"[1-9]\d*[kmgt]", re.IGNORECASE)
_YARN_SETTINGS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


class BadMaster(ConfigError):
    """A master that Spark does not know."""

    hint = "use local[*], local[N], spark://HOST:PORT, k8s://HOST:PORT or yarn"


def check_master(master: str, environment: Mapping[str, str]) -> None:
    """Raise `BadMaster` if Spark would not accept the master."""
    if not _MASTER.fullmatch(master):
        raise BadMaster(f"--master {master} is not a master of Spark")
    if master == "yarn" and not any(environment.get(name) for name in _YARN_SETTINGS):
        raise BadMaster(
            f"--master yarn requires {' or '.join(_YARN_SETTINGS)} in the environment",
            hint="set it to the folder of the configuration of Hadoop",
        )


def check_driver_memory(size: str) -> None:
    """Raise `ConfigError` if Java would not accept the size of its heap."""
    if not _MEMORY.fullmatch(size):
        raise ConfigError(
            f"--driver-memory {size} is not a size", hint="use a number with the unit k, m, g or t, for example 2g"
        )
