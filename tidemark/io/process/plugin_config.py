"""The sections of plug-ins: `[consumer]`, `[serializer]` and the list `[[transforms]]`.

Their keys are the parameters of the plug-ins' constructors, which are known only once the plug-ins are imported: the
daemons check them (`tidemark.runtime.plugins`). Programs that only read the configuration import no plug-in.
"""

from collections.abc import Mapping

Options = Mapping[str, object]
USE = "use"  # the key of an entry of [[transforms]] that names the plug-in
SECTIONS = frozenset({"consumer", "serializer"})
TRANSFORMS = "transforms"
BUILT_IN_CONSUMERS = ("outbox", "jsonl", "null")


def plugin_faults(section: str, values: object) -> list[str]:
    """Return what is wrong with a section of plug-ins before these are known."""
    if section in SECTIONS:
        return [] if isinstance(values, dict) else [f"{section}: Expected a section with keys"]
    if not isinstance(values, list) or not all(isinstance(each, dict) for each in values):
        return [f"{TRANSFORMS}: Expected a list: write [[{TRANSFORMS}]] above each"]
    return [
        f'{TRANSFORMS}.{number}: the key {USE} must name the transform, for example "tidemark:Mask"'
        for number, each in enumerate(values)
        if not isinstance(each.get(USE), str) or not each[USE]
    ]
