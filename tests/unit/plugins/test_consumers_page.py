"""docs/consumers.md: its example runs as it is written, and its configuration is accepted."""

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pyarrow.parquet
import pytest

from tests.support.forged.groups import batch, position
from tests.support.samples.changed_rows import batch_of, customers
from tests.unit.plugins.test_group_transforms import EPOCH, group_of, transforms_of
from tidemark import Consumer, ConsumerFailed, Delivery, Partition, Serializer
from tidemark.io.process.config import PoolConfig
from tidemark.io.process.config_loading import parse_config
from tidemark.model.lsn import SystemIdentifier
from tidemark.runtime.plugins.plugin_path import CONSUMERS, SERIALIZERS, TRANSFORMS
from tidemark.runtime.plugins.plugins import load_plugins
from tidemark.runtime.pool.handler_consumer import unit_handler

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "consumers.md").read_text()
NAME = "my_package.consumers"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that the page writes."""
    made = ModuleType(NAME)
    for block in blocks("python"):
        exec(block, vars(made))
    monkeypatch.setitem(sys.modules, NAME.partition(".")[0], ModuleType("my_package"))
    monkeypatch.setitem(sys.modules, NAME, made)
    return made


def test_the_example_writes_what_it_is_called_with(example: ModuleType, tmp_path: Path) -> None:
    consumer = vars(example)["LinesConsumer"](tmp_path / "lines.jsonl")
    assert isinstance(consumer, Consumer)
    group = group_of(batch(100, [1, 2]))
    items = transforms_of().batches(batch(100, [1, 2]))
    consumer.on_assigned(EPOCH, position(90))
    assert consumer.on_delivery(Delivery(items, group.last.position)) is True
    assert (tmp_path / "lines.jsonl").read_text().splitlines() == [
        '["public.account", "i", {"id": 1, "note": "x"}]',
        '["public.account", "i", {"id": 2, "note": "x"}]',
    ]
    with pytest.raises(ConsumerFailed, match="is no folder"):
        vars(example)["LinesConsumer"](tmp_path / "none" / "lines").on_assigned(EPOCH, position(90))


def test_the_example_of_the_hook_keeps_the_place_of_a_second_stream(example: ModuleType, tmp_path: Path) -> None:
    consumer = vars(example)["MergingConsumer"](tmp_path / "lines.jsonl")
    own, second = Partition(SystemIdentifier(1)), Partition(SystemIdentifier(7))
    stored = consumer.update_offsets({own: position(100), second: position(50)})
    assert stored == {own: position(100), second: position(50)}
    consumer.merged = position(70)
    assert consumer.update_offsets(stored) == {own: position(100), second: position(70)}


@pytest.mark.usefixtures("example")
def test_the_example_of_a_configuration_is_accepted(tmp_path: Path) -> None:
    key = tmp_path / "mask.key"
    key.write_text("0123456789abcdef")
    key.chmod(0o600)
    text = blocks("toml")[0].replace("/etc/tidemark/mask.key", str(key))
    plugins = load_plugins(parse_config(text, {}, where="t"), "t")
    assert plugins.uses.consumer.name == f"{NAME}:LinesConsumer"
    assert len(plugins.transforms) == 1


@pytest.mark.usefixtures("example")
def test_the_example_of_a_handler_writes_files_and_its_configuration_is_accepted(tmp_path: Path) -> None:
    text = blocks("toml")[1].replace("/srv/changes", str(tmp_path))
    config = parse_config(text, {}, where="t")
    plugins = load_plugins(config, "t")
    assert config.pool == PoolConfig(workers=4, kind="processes", order="key")
    assert plugins.make_handler is not None
    (made,) = transforms_of().batches(batch(100, [1, 2]))
    unit_handler(plugins.make_handler())(made)
    (file,) = tmp_path.iterdir()
    assert file.name == "public.account-1-0000000000000064-1.parquet"
    assert pyarrow.parquet.read_table(file).num_rows == 2


def test_the_example_of_a_serializer_makes_records_that_the_consumer_of_its_configuration_writes(
    example: ModuleType, tmp_path: Path
) -> None:
    text = blocks("toml")[2] + f"[consumer]\nfile = '{tmp_path / 'lines'}'\n"
    plugins = load_plugins(parse_config(text, {}, where="t"), "t")
    serializer, name = plugins.serializer, plugins.uses.consumer.name
    assert isinstance(serializer, Serializer)
    rows = batch_of(("i", None, {"id": 1, "name": "a;b"}), ("d", {"id": 2}, None), of=customers("id", "name"))
    records = serializer.serialized(rows, 0)
    assert [(each.key, each.value) for each in records] == [(b"1", b'1;"a;b"'), (b"2", None)]
    consumer = vars(example)[name.rpartition(":")[2]](tmp_path / "lines")
    assert consumer.on_delivery(Delivery([records], rows.position)) is True
    assert (tmp_path / "lines").read_bytes() == b'1\t1;"a;b"\n2\t\n'


def test_the_groups_of_entry_points_and_the_examples_package_are_those_of_the_page() -> None:
    for group in (CONSUMERS.group, SERIALIZERS.group, TRANSFORMS.group):
        assert f"`{group}`" in TEXT
    shown = tomllib.loads(blocks("toml")[3])["project"]["entry-points"]
    package = tomllib.loads((ROOT / "examples" / "tidemark-sqlite" / "pyproject.toml").read_text())
    assert package["project"]["entry-points"] == shown
