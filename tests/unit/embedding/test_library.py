"""`import tidemark`: the public names, and what importing it costs; bad arguments of an engine."""

import asyncio
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
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
from tidemark import AsyncHandler, Batch, DebeziumJson, Engine, EngineGroup, Mask, StopWhen, every
from tidemark.embedding.engine_options import CHECKS, REFUSED_SETTINGS
from tidemark.io.process.config import Config

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
        (lambda state: Engine(DSN, state=state), "give exactly one of handler, change_handler and processor"),
        (
            lambda state: Engine(DSN, state=state, handler=handle, change_handler=handle),  # type: ignore[arg-type]
            "give exactly one of handler",
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
        (
            lambda state: Engine(DSN, state=state, handler=handle, settings={"deliver": {"no_such": 1}}),
            "unknown key deliver.no_such",
        ),
        (lambda state: Engine(DSN, state=state, handler=handle, settings={"no_such": {}}), "unknown key no_such"),
        (lambda state: Engine(DSN, state=state, handler=handle, tables=[]), "tables=.*: must be at least one pattern"),
    ],
)
def test_a_bad_argument_is_refused_by_name_before_anything_is_opened(
    make: Callable[[Path], Engine], message: str, tmp_path: Path
) -> None:
    with pytest.raises(tidemark.ConfigError, match=message):
        make(tmp_path / "state")
    assert not (tmp_path / "state").exists()


async def handle_later(batch: Batch) -> None:
    del batch


def handle_never(batch: Batch) -> Iterator[Batch]:
    yield batch


class HandledLater:
    async def __call__(self, batch: Batch) -> None:
        del batch


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("workers", -1, "=-1: must be a whole number from 0 to 256"),
        ("retries", -1, "=-1: must be a whole number from 0 to 1000"),
        ("order", "total", "='total': must be one of Order.TOTAL, "),
        ("commit", 5, "=5: must be ALWAYS, every(...)"),
        ("poison", "park", "='park': must be one of Poison.FAIL, "),
        ("serializer", "json", "='json': must be an instance of a serializer"),
        ("stop_within_s", -1, "=-1: must be a number of seconds from 0"),
        ("start_within_s", 0, "=0: must be a number of seconds greater than 0"),
        ("transforms", [handle], "[0]=<function object>: must be an instance of a transform"),
        ("buffer_bytes", 1, "=1: must be a whole number from 65536"),
        ("tables", "public.*", "='public.*': must be a list of patterns"),
        ("workers", "4", "='4': must be a whole number from 0 to 256"),
        ("workers", True, "=True: must be a whole number from 0 to 256"),
        ("retries", 1.5, "=1.5: must be a whole number from 0 to 1000"),
        ("buffer_bytes", 1e9, "=1000000000.0: must be a whole number from 65536 to 1099511627776"),
        ("start_within_s", "5", "='5': must be a number of seconds greater than 0"),
        ("start_within_s", float("nan"), "=nan: must be a number of seconds greater than 0"),
        ("stop_within_s", None, "=None: must be a number of seconds from 0 to 86400"),
        ("stop_within_s", float("inf"), "=inf: must be a number of seconds from 0 to 86400"),
        ("dsn", b"host=db password=secret", "=<bytes object>: must be text"),
        ("state", None, "=None: must be the path of a folder"),
        ("state", "", "='': must be the path of a folder"),
        ("tables", [5], "[0]=5: must be text"),
        ("databases", ["shop", None], "[1]=None: must be text"),
        ("databases", {"shop": 1}, "=<dict object>: must be a list of patterns"),
        ("transforms", Mask("public.customers.email"), "=<Mask object>: must be a list of transforms"),
        ("transforms", [Mask], "[0]=<class Mask>: must be an instance of a transform"),
        ("serializer", DebeziumJson, "=<class DebeziumJson>: must be an instance of a serializer"),
        ("commit", every, "=<function object>: must be ALWAYS, every(...)"),
        ("pool", "processes", "='processes': must be one of PoolKind.THREADS, PoolKind.PROCESSES"),
        ("stop_when", 100, "=100: must be StopWhen.after_changes(...)"),
        ("settings", [], ": expected a mapping as in {"),
        *(
            (name, given, f"={shown}: must be a function that is neither async nor a generator")
            for name in ("handler", "change_handler", "on_event", "update_offsets", "on_loss", "on_end")
            for given, shown in (
                (5, "5"),
                (Batch, "<class Batch>"),
                (handle_later, "<function object>"),
                (partial(handle_later), "<partial object>"),
                (handle_never, "<function object>"),
                (HandledLater(), "<HandledLater object>"),
            )
        ),
    ],
)
def test_an_argument_of_another_kind_is_refused_with_what_was_given_and_what_it_must_be(
    name: str, given: object, message: str, tmp_path: Path
) -> None:
    arguments: Mapping[str, object] = {"dsn": DSN, "state": tmp_path / "state", "handler": handle, name: given}
    with pytest.raises(tidemark.ConfigError, match=f"^{re.escape(f'tidemark.Engine: {name}{message}')}"):
        Engine(**arguments)  # type: ignore[arg-type]
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("settings", "name", "hint"),
    [
        ({"deliver": {"consumer": "jsonl"}}, "deliver.consumer", "give the argument handler of the engine"),
        ({"deliver": {"jsonl_file": "-"}}, "deliver.jsonl_file", "give the argument handler of the engine"),
        ({"deliver": {"serializer": "x:Y"}}, "deliver.serializer", "give the argument serializer of the engine"),
        ({"select": {"tables": ["a.*"]}}, "select.tables", "give the argument tables of the engine"),
        ({"capture": {"dsn": "host=other"}}, "capture.dsn", "give the argument dsn of the engine"),
        ({"poison": {"policy": "park"}}, "poison.policy", "give the argument poison of the engine"),
        ({"pool": {"workers": 4}}, "pool", "give the argument workers, pool, order or buffer_bytes of the engine"),
        ({"transforms": [{"use": "tidemark:Mask"}]}, "transforms", "give the argument transforms of the engine"),
        ({"metrics": {"port": 1}}, "metrics", "omit it: an engine does not use it"),
        ({"standby": {"follow": True}}, "standby", "omit it: an engine does not use it"),
    ],
)
def test_a_setting_that_an_engine_does_not_use_or_decides_itself_is_refused(
    settings: Mapping[str, Mapping[str, object]], name: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(tidemark.ConfigError, match=f"settings: {name} is not a setting of an engine") as raised:
        Engine(DSN, state=tmp_path / "state", handler=handle, settings=settings)
    assert raised.value.hint == hint


def test_every_refused_setting_exists() -> None:
    for name in REFUSED_SETTINGS:
        section, _dot, key = name.partition(".")
        assert hasattr(Config(), section)
        assert not key or hasattr(getattr(Config(), section), key)


def test_each_argument_of_an_engine_has_a_check() -> None:
    arguments = {*inspect.signature(Engine).parameters}
    assert arguments == {*CHECKS, "processor", "settings"}


def test_a_processor_with_async_methods_is_refused(tmp_path: Path) -> None:
    class ProcessesLater:
        def start(self, pool: tidemark.WorkerPool) -> None: ...

        async def process(self, part: tidemark.ProcessorPart) -> None: ...

        def stop(self) -> None: ...

    with pytest.raises(tidemark.ConfigError, match=r"processor=.* is not a processor"):
        Engine(DSN, state=tmp_path / "state", processor=ProcessesLater())  # type: ignore[arg-type]


def test_other_calls_of_the_library_check_their_arguments(tmp_path: Path) -> None:
    engine = Engine(DSN, state=tmp_path / "state", handler=handle)
    for call, message in (
        (lambda: every(seconds="5"), "tidemark.every: seconds='5': must be a number greater than 0"),  # type: ignore[arg-type]
        (lambda: StopWhen.after(5), "StopWhen.after: test=5: must be a function"),  # type: ignore[arg-type]
        (lambda: StopWhen.after_changes("5"), "StopWhen.after_changes: count='5': must be a number"),  # type: ignore[arg-type]
        (lambda: EngineGroup([engine]), r"EngineGroup: engines\[0\]=<list object>: must be an engine"),  # type: ignore[arg-type]
        (lambda: EngineGroup(engine).stop("5"), "EngineGroup.stop: within_s='5': must be a number of seconds"),  # type: ignore[arg-type]
        (lambda: engine.wait("5"), "Engine.wait: timeout_s='5': must be a number of seconds, not below 0"),  # type: ignore[arg-type]
        (lambda: engine.stop(float("inf")), "Engine.stop: within_s=inf: must be a number of seconds from 0"),
        (
            lambda: asyncio.run(AsyncHandler[Batch]().running(DSN).__aenter__()),  # type: ignore[arg-type]
            "AsyncHandler.running: engine='.*: must be an engine",
        ),
    ):
        with pytest.raises(tidemark.ConfigError, match=message):
            call()


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


def test_an_error_of_a_callback_is_logged_as_its_own_and_without_its_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_error: BaseException | None) -> None:
        raise ZeroDivisionError("a row's value")

    Engine(DSN, state=tmp_path / "state", handler=handle, on_end=fail).stop()
    [line] = [record.getMessage() for record in caplog.records]
    assert "callback=on_end error=raised by on_end kind=ZeroDivisionError" in line
    assert "a row's value" not in line
