"""The Arrow types of values are fixed by `init`: another choice would need new tables."""

from dataclasses import fields

from tidemark.io.process.config import BadConfig, TypesConfig
from tidemark.wire.state import Beginning


class OtherTypes(BadConfig):
    """A configuration with other Arrow types than those of the state."""

    hint = (
        "restore the value of the state, or create a new state and a new lake: the types of existing tables "
        "cannot change"
    )


def check_types(types: TypesConfig, beginning: Beginning) -> None:
    """Raise `OtherTypes` if the configuration has other Arrow types than those of the capture."""
    wanted = types.mapping()
    for key in fields(wanted):
        configured, stored = getattr(wanted, key.name), getattr(beginning.types, key.name)
        if configured != stored:
            raise OtherTypes(f"types.{key.name} is {configured} in the configuration, and {stored} since `cdcctl init`")
