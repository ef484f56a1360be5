"""The list of equivalent mutants, which no test can detect, with the reasons."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from scripts.mutation.operators import Mutant

LIST = Path(__file__).with_name("equivalents.toml")


def read_equivalents(path: Path = LIST) -> dict[tuple[str, str], tuple[str, str]]:
    """Return the listed change and the reason by module and mutant; raise `ValueError` if a reason is missing."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for entry in tomllib.loads(path.read_text()).get("equivalent", ()):
        module, name, change, reason = (entry[key] for key in ("module", "mutant", "change", "reason"))
        if not reason.strip() or (module, name) in found:
            raise ValueError(f"{module}: {name}: listed twice, or without a reason")
        found[module, name] = (change, reason)
    return found


def stale_entries(listed: Mapping[tuple[str, str], tuple[str, str]], mutants: Iterable[Mutant]) -> list[str]:
    """Return the entries that match no mutant: the code has changed, and the reason may no longer be valid."""
    changes = {(mutant.module, mutant.name): mutant.change for mutant in mutants}
    return [
        f"{module}: {name}: {change}"
        for (module, name), (change, _) in listed.items()
        if changes.get((module, name)) != change
    ]
