"""`import tidemark`: the public names, and what importing it costs; bad arguments of an engine."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_origin

import pytest

import tidemark
from tests.support.plugins.bad_plugins import (
    SerializerOfKeysAlone,
    SerializerOfNoKey,
    SerializerOfNoSection,
    SerializerOfSections,
)
from tidemark import Batch, Engine

DSN = "postgresql://cdc@db/shop"
PROGRAM = """
import sys
import tidemark
before = {*sys.modules}
tidemark.Order
tidemark.Position
print(len([name for name in before if name.startswith("tidemark.")]), *sys.modules)
"""


def test_importing_the_package_loads_nothing_of_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=60)
    count, *names = done.stdout.split()
    assert int(count) == 0
    assert "tidemark.engine.pool.dispatch" in names
    assert not {"numpy", "pyarrow", "lmdb", "psycopg", "pydantic"} & {*names}


def test_the_parser_of_expressions_is_loaded_only_for_transforms_with_expressions() -> None:
    program = "import sys; import tidemark; tidemark.{}('{}'); print('sqlglot' in sys.modules)"
    for call, is_loaded in ((("Mask", "public.customers.email"), "False"), (("Filter", "id > 1"), "True")):
        command = [sys.executable, "-c", program.format(*call)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        assert done.stdout.strip() == is_loaded


def test_each_public_name_is_defined_and_listed() -> None:
    for name in tidemark.__all__:
        assert getattr(tidemark, name) is not None
        assert name in dir(tidemark)
    assert tidemark.__all__ == sorted(tidemark.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Sidecar'"):
        tidemark.__getattr__("Sidecar")


def test_each_public_name_has_a_docstring() -> None:
    """NB: that of an alias of a type is below it; `scripts/reference_page.py` refuses one without."""
    for name in tidemark.__all__:
        found = getattr(tidemark, name)
        if get_origin(found) is None and callable(found):
            assert found.__doc__, name


def handle(batch: Batch) -> None:
    del batch


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda state: Engine(DSN, state=state, handler=handle, workers=-1), "workers=-1: must be from 0"),
        (lambda state: Engine(DSN, state=state, handler=handle, retries=-1), "retries=-1: must be from 0"),
        (
            lambda state: Engine(DSN, state=state, handler=handle, order="total"),  # type: ignore[arg-type]
            "order='total': must be one of Order",
        ),
        (
            lambda state: Engine(DSN, state=state, handler=handle, commit=5),  # type: ignore[arg-type]
            "commit=5: must be ALWAYS",
        ),
        (
            lambda state: Engine(DSN, state=state, handler=handle, poison="park"),  # type: ignore[arg-type]
            "poison='park': must be one of Poison.FAIL",
        ),
        (lambda state: Engine(DSN, state=state), "give exactly one of handler, change_handler and processor"),
        (
            lambda state: Engine(DSN, state=state, handler=handle, change_handler=handle),  # type: ignore[arg-type]
            "give exactly one of handler",
        ),
        (
            lambda state: Engine(DSN, state=state, handler=handle, serializer="json"),  # type: ignore[arg-type]
            "serializer is str",
        ),
        (
            lambda state: Engine(DSN, state=state, handler=handle, serializer=SerializerOfNoSection()),
            "tidemark.Engine: settings of SerializerOfNoSection: unknown key formats",
        ),
        (
            lambda state: Engine(DSN, state=state, handler=handle, serializer=SerializerOfNoKey()),
            "tidemark.Engine: settings of SerializerOfNoKey: unknown key types.decimal",
        ),
        (
            lambda state: Engine(DSN, state=state, handler=handle, serializer=SerializerOfKeysAlone()),
            "settings of SerializerOfKeysAlone: decimals: expected a mapping of keys as in .*, got str",
        ),
        (
            lambda state: Engine(DSN, state=state, handler=handle, serializer=SerializerOfSections()),
            "tidemark.Engine: settings of SerializerOfSections: expected a mapping as in .*, got list",
        ),
        (
            lambda state: Engine(DSN, state=state, handler=handle, settings={"deliver": 5}),  # type: ignore[dict-item]
            "tidemark.Engine: settings: deliver: expected a mapping of keys as in .*, got int",
        ),
        (
            lambda state: Engine(DSN, state=state, handler=handle, settings={5: {}}),  # type: ignore[dict-item]
            "tidemark.Engine: settings: expected sections as in .*, got one named by int",
        ),
        (lambda state: Engine(DSN, state=state, handler=handle, stop_within_s=-1), "stop_within_s=-1"),
        (lambda state: Engine(DSN, state=state, handler=handle, start_within_s=0), "start_within_s=0: must be greater"),
        (
            lambda state: Engine(DSN, state=state, handler=handle, transforms=[handle]),  # type: ignore[list-item]
            "transforms: number 1 is function",
        ),
        (lambda state: Engine(DSN, state=state, handler=handle, buffer_bytes=1), "deliver.unconfirmed_bytes_max"),
        (lambda state: Engine(DSN, state=state, handler=handle, tables="public.*"), "lists of patterns"),
        (
            lambda state: Engine(DSN, state=state, handler=handle, settings={"deliver": {"no_such": 1}}),
            "unknown key deliver.no_such",
        ),
        (lambda state: Engine(DSN, state=state, handler=handle, settings={"no_such": {}}), "unknown key no_such"),
    ],
)
def test_a_bad_argument_is_refused_by_name_before_anything_is_opened(
    make: Callable[[Path], Engine], message: str, tmp_path: Path
) -> None:
    with pytest.raises(tidemark.ConfigError, match=message):
        make(tmp_path / "state")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("dsn", ["postgresql://cdc@db", "postgresql://cdc:secret@db/shop", "nonsense"])
def test_a_bad_dsn_is_refused_without_its_password(dsn: str, tmp_path: Path) -> None:
    with pytest.raises(tidemark.ConfigError) as raised:
        Engine(dsn, state=tmp_path / "state", handler=handle)
    assert "secret" not in str(raised.value)


def test_an_engine_that_was_never_started_stops_at_once(tmp_path: Path) -> None:
    ends: list[BaseException | None] = []
    engine = Engine(DSN, state=tmp_path / "state", handler=handle, on_end=ends.append)
    assert not engine.wait(0)
    assert engine.stop() == ()
    assert ends == [None]
    assert engine.wait()
    assert engine.confirmed is None
    with pytest.raises(tidemark.IllegalTransition, match="is stopped"):
        engine.start()
