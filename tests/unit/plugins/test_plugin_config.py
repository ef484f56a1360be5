"""The names and the options of plug-ins: what is wrong is named with file, section and key."""

from pathlib import Path

import pytest

from tests.support.plugins.bad_plugins import AcceptingConsumer
from tests.support.plugins.handlers import FileHandler
from tidemark import DebeziumJson, Mask, OnRow, Secret
from tidemark.io.process.config import BadConfig
from tidemark.io.process.config_loading import parse_config
from tidemark.model.errors import ExitCode
from tidemark.runtime.plugins.plugin_path import PluginRaised
from tidemark.runtime.plugins.plugins import Plugins, load_plugins

PLUGINS = "tests.support.plugins.bad_plugins"
ACCEPTING = f"[deliver]\nconsumer = '{PLUGINS}:AcceptingConsumer'\n"
HANDLING = "[deliver]\nconsumer = 'tests.support.plugins.handlers:FileHandler'\n[consumer]\nfile = '/srv/rows'\n"
MASK = "[[transforms]]\nuse = 'tidemark:Mask'\ncolumns = ['app.person.email']\n"


def load(text: str) -> Plugins:
    return load_plugins(parse_config(text, {}, where="t.toml"), "t.toml")


def test_plugins_are_made_with_their_options(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef")
    key.chmod(0o600)
    plugins = load(
        f"[deliver]\nconsumer = '{PLUGINS}:AcceptingConsumer'\nserializer = 'tidemark:DebeziumJson'\n"
        "[types]\ndecimals = 'string'\n"
        f"[consumer]\nnote = 'x'\n[serializer]\nname = 'shop'\n{MASK}key = {{file = '{key}'}}\n"
        f"[[transforms]]\nuse = 'tidemark:OnRow'\nfunction = '{PLUGINS}:leaking'\noperations = 'iu'\n"
    )
    assert plugins.make_consumer is not None
    first, second = plugins.make_consumer(), plugins.make_consumer()
    assert isinstance(first, AcceptingConsumer)
    assert first.note == "x"
    assert first is not second
    assert isinstance(plugins.serializer, DebeziumJson)
    mask, on_row = plugins.transforms
    assert isinstance(mask, Mask)
    assert isinstance(on_row, OnRow)
    uses = plugins.uses
    assert (uses.consumer.name, uses.consumer.version) == (f"{PLUGINS}:AcceptingConsumer", "7")
    assert [use.name for use in uses.transforms] == [
        "tidemark.transforms.masks:Mask",
        "tidemark.transforms.user_functions:OnRow",
    ]
    assert uses != load(ACCEPTING).uses


def test_a_handler_is_a_second_kind_of_consumer_with_a_pool() -> None:
    plugins = load(f"{HANDLING}[pool]\nworkers = 2\nkind = 'processes'\norder = 'key'\n[poison]\npolicy = 'park'")
    assert plugins.make_consumer is None
    assert plugins.make_handler is not None
    assert isinstance(plugins.make_handler(), FileHandler)
    assert plugins.make_handler() is not plugins.make_handler()
    assert (plugins.uses.consumer.name, plugins.uses.consumer.version) == (
        "tests.support.plugins.handlers:FileHandler",
        "1",
    )


def test_a_secret_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASK_KEY", "0123456789abcdef")
    (mask,) = load(f"{MASK}key = {{environment = 'MASK_KEY'}}\n").transforms
    assert vars(mask)["_key"] == Secret(b"0123456789abcdef")


def test_the_fingerprint_of_a_mask_covers_its_key_wherever_the_key_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fingerprint(key: str) -> str:
        (use,) = load(f"{MASK}key = {key}\n").uses.transforms
        return use.options

    file = tmp_path / "key"
    file.write_text("0123456789abcdef\n")
    file.chmod(0o600)
    monkeypatch.setenv("MASK_KEY", "0123456789abcdef")
    first = fingerprint("{environment = 'MASK_KEY'}")
    assert first == fingerprint(f"{{file = '{file}'}}")
    monkeypatch.setenv("MASK_KEY", "0123456789abcdeg")
    assert first != fingerprint("{environment = 'MASK_KEY'}")


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (
            "[deliver]\nconsumer = 'kafka'",
            "no package has an entry point kafka in tidemark.consumers",
        ),
        ("[deliver]\nconsumer = 'a b:C'", "deliver.consumer: 'a b:C' is not an import path"),
        ("[deliver]\nconsumer = 'nowhere.at:All'", "deliver.consumer: there is no module nowhere"),
        (f"[deliver]\nconsumer = '{PLUGINS}:Nothing'", f"deliver.consumer: the module {PLUGINS} has no Nothing"),
        ("[deliver]\nconsumer = 'tidemark:Mask'", "tidemark:Mask is Mask, and not a subclass of tidemark.Consumer"),
        (
            f"[deliver]\nconsumer = '{PLUGINS}:leaking'",
            "leaking is a function, and not a subclass of",
        ),
        (f"[deliver]\nconsumer = '{PLUGINS}:IncompleteConsumer'", "is incomplete: it does not define on_delivery"),
        (f"{ACCEPTING}[consumer]\nnotes = 'x'", "consumer.notes: unknown key; AcceptingConsumer has note"),
        (f"{ACCEPTING}[consumer]\nnote = 5", "consumer.note: Expected `str`, got `int`"),
        (f"{HANDLING}files = 'x'", "consumer.files: unknown key; FileHandler has file, gate, refuses"),
        (f"[deliver]\nconsumer = '{PLUGINS}:IncompleteHandler'", "is incomplete: it does not define handle"),
        (
            f"[deliver]\nconsumer = '{PLUGINS}:HandlerOfLater'",
            f"{PLUGINS}:HandlerOfLater: handle: must be a method that is neither async nor a generator",
        ),
        (f"{ACCEPTING}[pool]\nworkers = 2", f"pool: the consumer {PLUGINS}:AcceptingConsumer is called by one thread"),
        ("[pool]\nkind = 'processes'", "pool: the consumer outbox is called by one thread, and has no pool"),
        (f"{HANDLING}[pool]\nworkers = 0", "pool.workers: Expected `int` >= 1"),
        (f"{HANDLING}[pool]\nworkers = 257", "pool.workers: Expected `int` <= 256"),
        (f"{HANDLING}[pool]\nkind = 'fibers'", "pool.kind: Expected one of 'threads', 'processes'"),
        (f"{HANDLING}[pool]\norder = 'by key'", "pool.order: Expected one of 'total', 'key', 'none'"),
        (f"{HANDLING}[pool]\nworker = 2", "unknown key pool.worker"),
        (f"{HANDLING}[pool]\nbuffer_bytes = 1000", "pool.buffer_bytes: Expected `int` >= 65536"),
        (
            f"{HANDLING}[pool]\nbuffer_bytes = {1 << 30}",
            "pool.buffer_bytes: at most deliver.unconfirmed_bytes_max",
        ),
        (f"{ACCEPTING}[serializer]\nname = 'x'", "serializer: deliver.serializer names no serializer"),
        (f"{ACCEPTING}serializer = 'tidemark:DebeziumJson'", "DebeziumJson needs types.decimals = 'string'"),
        (
            f"{ACCEPTING}serializer = '{PLUGINS}:SerializerOfNoSection'",
            "needs formats.decimals, and the configuration has",
        ),
        (f"{ACCEPTING}serializer = '{PLUGINS}:SerializerOfNoKey'", "needs types.decimal, and the configuration has no"),
        (
            f"{ACCEPTING}serializer = '{PLUGINS}:SerializerOfKeysAlone'",
            f"settings of {PLUGINS}:SerializerOfKeysAlone: decimals: expected a mapping of keys as in",
        ),
        (f"{ACCEPTING}serializer = '{PLUGINS}:SerializerOfSections'", "expected a mapping as in"),
        (f"{ACCEPTING}serializer = '{PLUGINS}:SerializerOfNumber'", "types: expected keys as in"),
        (f"{ACCEPTING}serializer = 'tidemark:Mask'", "deliver.serializer: tidemark:Mask is Mask"),
        ("[deliver]\nserializer = 'tidemark:FlatJson'", "deliver.serializer: outbox takes batches, not records"),
        ("[consumer]\nfile = 'x'", "consumer: outbox has no options here"),
        ("consumer = 5", "consumer: Expected a section"),
        ("transforms = 5", "transforms: Expected a list: write [[transforms]]"),
        ("[[transforms]]\ncolumns = ['a']", "transforms.0: the key use must name the transform"),
        (f"{MASK}[[transforms]]\nuse = 'tidemark:Rename'", "transforms.1.column: Rename needs this key"),
        (f"{MASK}colour = 'red'", "transforms.0.colour: unknown key; Mask has columns, key, keep_first"),
        (f"{MASK}keep_first = 'two'", "transforms.0.keep_first: Expected `int`, got `str`"),
        (f"{MASK}key = 'hunter2hunter2hunter2'", 'transforms.0.key: a secret is given as {file = "..."}'),
        (f"{MASK}key = {{file = '/nowhere'}}", "transforms.0.key: the secret, /nowhere, cannot be read"),
        (f"{MASK}keep_first = -1", "transforms.0: Mask('app.person.email'): keep_first, keep_last and truncate_to"),
        (
            "[[transforms]]\nuse = 'tidemark:Cast'\ncolumn = 'a.b.c'\nto = 'money'",
            "transforms.0: Cast('a.b.c',",
        ),
        ("[[transforms]]\nuse = 'tidemark:Filter'\ncondition = 'a ='", "transforms.0: Filter"),
        ("[[transforms]]\nuse = 'tidemark:Flatten'", "transforms.0: Flatten gives rows another table or form"),
        (
            "[[transforms]]\nuse = 'tidemark:OnRow'\nfunction = 'os:nothing'",
            "transforms.0.function: the module os has",
        ),
    ],
)
def test_a_wrong_plugin_is_refused_by_its_key_and_without_its_value(text: str, reported: str) -> None:
    with pytest.raises(BadConfig) as raised:
        load(text)
    assert str(raised.value).startswith("t.toml: ")
    assert reported in str(raised.value)
    assert "hunter" not in str(raised.value)
    assert raised.value.hint
    assert raised.value.exit_code is ExitCode.CONFIG


def test_an_error_of_a_constructor_is_one_of_the_plugin() -> None:
    with pytest.raises(PluginRaised, match=r"t\.toml: consumer: the constructor of .*RaisingConsumer raised ValueE"):
        load(f"[deliver]\nconsumer = '{PLUGINS}:RaisingConsumer'")


def test_an_error_while_a_module_is_imported_is_one_of_the_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_plugin.py").write_text("import a_module_that_is_missing")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(PluginRaised, match=r"deliver\.consumer: importing broken_plugin raised ModuleNotFoundError"):
        load("[deliver]\nconsumer = 'broken_plugin:Any'")


def test_the_environment_sets_options_of_a_consumer() -> None:
    environment = {"TIDEMARK_CONSUMER__NOTE": "from outside"}
    plugins = load_plugins(parse_config(ACCEPTING, environment, where="t"), "t")
    assert plugins.make_consumer is not None
    assert vars(plugins.make_consumer())["note"] == "from outside"


def test_a_plugin_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = tmp_path / "shop_plugins-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-plugins\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[tidemark.consumers]\nshop = {PLUGINS}:AcceptingConsumer\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugins = load("[deliver]\nconsumer = 'shop'")
    assert plugins.uses.consumer.name == f"{PLUGINS}:AcceptingConsumer", "as by its import path"
