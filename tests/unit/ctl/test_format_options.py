"""An option that an output format would ignore is refused before anything is read."""

import pytest
from click.testing import CliRunner
from tidemark_ctl.main import cdcctl

from tidemark.model.errors import ConfigError

NOWHERE = "postgresql://cdc@127.0.0.1:1/nowhere"


@pytest.mark.parametrize(
    "options",
    [
        ("--partition-root", "public.orders"),
        ("--exclude-origin", "any"),
        ("--exclude-origin", "0"),
        ("--message", "none"),
        ("--transactions",),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize(
    "command",
    [("tail", NOWHERE), ("decode", "--state", "absent", "--archive", "absent")],
    ids=lambda command: str(command[0]),
)
def test_test_decoding_refuses_options_that_it_would_ignore(command: tuple[str, ...], options: tuple[str, ...]) -> None:
    error = CliRunner().invoke(cdcctl, [*command, "--format", "test_decoding", *options]).exception
    assert isinstance(error, ConfigError)
    assert str(error) == f"--format test_decoding cannot be combined with {options[0]}"


@pytest.mark.parametrize("options", [("--table", "public.orders"), ("--message", "*")], ids=" ".join)
def test_test_decoding_accepts_options_that_it_follows(options: tuple[str, ...]) -> None:
    error = CliRunner().invoke(cdcctl, ["tail", NOWHERE, "--format", "test_decoding", *options]).exception
    assert not isinstance(error, ConfigError)
    assert error is not None
