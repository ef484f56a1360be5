"""Only the modules that the table names write a key of the state."""

import ast
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tidemark.wire.key_writers import WRITERS
from tidemark.wire.state import state_keys
from tidemark.wire.state.key import Key

ROOT = Path(__file__).parents[2]
KEYS_MODULE = state_keys.__name__.rpartition(".")[2]
FOLDERS = ("tidemark", "sidecar", "archiver", "ctl", "pyspark_tidemark")
KEYS = {name: key for name, key in vars(state_keys).items() if isinstance(key, Key)}
RAW = {
    "tidemark.io.state.outbox_transaction",
    "tidemark.io.state.state",
    "tidemark.io.readers.outbox",
}  # may put a key from a variable


def test_a_key_is_written_by_the_modules_that_the_table_names_and_by_no_other() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for module, tree in _modules():
        for name in _written(tree):
            found[KEYS[name].name].add(module)
    assert found == WRITERS
    assert set(WRITERS) == {key.name for key in KEYS.values()}


def test_no_module_hides_which_key_it_writes() -> None:
    """A key under another name, or in a variable, would escape the table."""
    for module, tree in _modules():
        if not _imports_keys(tree):
            continue
        assert not _renamed(tree), f"{module} imports a key under another name"
        hidden = [
            call for call in _calls(tree, "put", "drop") if len(call.args) == 2 and _key_name(call.args[0]) is None
        ]
        assert not hidden or module in RAW, f"{module}:{hidden[0].lineno}: name the key where it is written"


def test_only_a_new_state_and_a_new_reader_are_stored_without_a_comparison_with_the_value_before() -> None:
    """Every other value is stored by `Key.encode_over`, which raises `InternalError` for a value that moves back."""
    found = {module: _imported(_encoded(tree, "encode"), tree) for module, tree in _modules()}
    assert {module: names for module, names in found.items() if names} == {
        "tidemark.io.state.state": ["IDENTITY", "LEDGER"],
        "tidemark.io.readers.outbox": ["READER"],
    }


def _modules() -> list[tuple[str, ast.Module]]:
    """Return the modules that may know a key."""
    paths = [path for part in FOLDERS for path in (ROOT / part).rglob("*.py")]
    texts = {".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text() for path in paths}
    return [(name, ast.parse(text)) for name, text in texts.items() if KEYS_MODULE in text]


def _written(tree: ast.Module) -> list[str]:
    """Return the keys that a module writes; another module can have a constant of the same name."""
    put = [_key_name(argument) for call in _calls(tree, "put", "drop", "replace_value") for argument in call.args]
    return _imported([*put, *_encoded(tree, "encode", "encode_over")], tree)


def _imported(names: Sequence[str | None], tree: ast.Module) -> list[str]:
    imported = {alias.name for alias in _imports(tree)}
    return [name for name in names if name in imported]


def _encoded(tree: ast.Module, *methods: str) -> list[str | None]:
    return [_key_name(call.func.value) for call in _calls(tree, *methods) if isinstance(call.func, ast.Attribute)]


def _calls(tree: ast.Module, *methods: str) -> list[ast.Call]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr in methods]


def _key_name(node: ast.expr) -> str | None:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name if name in KEYS else None


def _imports(tree: ast.Module) -> list[ast.alias]:
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return [alias for node in statements if node.module == "tidemark.wire.state.state_keys" for alias in node.names]


def _imports_keys(tree: ast.Module) -> bool:
    return any(alias.name in KEYS for alias in _imports(tree))


def _renamed(tree: ast.Module) -> bool:
    return any(alias.name in KEYS and alias.asname is not None for alias in _imports(tree))
