"""Each example of docs/transforms.md has the result that the page shows."""

import ast
import dataclasses
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidemark
from tests.support.plugins.examples import EmailDomain
from tests.support.samples.changed_rows import Side, batch_of, bound, customers, with_full_identity
from tidemark import Batch, Transform
from tidemark.io.process.config_loading import parse_config
from tidemark.runtime.plugins.plugin_path import TRANSFORMS
from tidemark.runtime.plugins.plugins import load_plugins

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "transforms.md").read_text()
EXAMPLES: list[str] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SIDE = re.compile(r'\{(?:"[^"]*"|[^}"])*\}|None')
COLUMNS = ("id", "name", "email")
GIVEN = [
    *("Mask", "Drop", "Rename", "Cast", "Filter", "Route", "Flatten", "ChangedFieldsOnly", "OutboxRouter"),
    *("OnBatch", "OnRow"),
]


def sides(text: str) -> list[Side]:
    return [ast.literal_eval(each) for each in SIDE.findall(text)]


def run(example: str, key_file: Path) -> Sequence[Transform]:
    """Execute the text of an example; return its transforms."""
    names: dict[str, object] = {name: getattr(tidemark, name) for name in tidemark.__all__}
    names |= {"dataclasses": dataclasses, "pa": pa, "pc": pc, "KEY_FILE": key_file}
    exec(compile(example, "docs/transforms.md", "exec"), names)
    transforms = names["transforms"]
    assert isinstance(transforms, list)
    return transforms


def result(batch: Batch, before: Batch, named: Mapping[str, object]) -> str:
    """Return what the page shows of a batch: its name if it is new, and the columns that it names."""
    (change,) = batch
    row = change.after or change.before or {}
    name = "" if batch.table == before.table and not named.get("") else f"{batch.table} "
    return f"{name}{ {key: row[key] for key in row if row[key] is not None or key in named} }"


@pytest.mark.feature("P15")
@pytest.mark.parametrize("example", EXAMPLES)
def test_each_example_has_the_result_that_the_page_shows(example: str, tmp_path: Path) -> None:
    key_file = tmp_path / "mask.key"
    key_file.write_text("0123456789abcdef\n")
    key_file.chmod(0o600)
    transforms = run(example, key_file)
    lines = re.findall(r"^# (\w) (.*) -> (.*)$", example, re.MULTILINE)
    assert lines
    for op, given, expected in lines:
        *old, new = sides(given)
        row = new or old[0] or {}
        names = COLUMNS if {*row} <= {*COLUMNS} else tuple(row)
        if "outbox" in example:
            names = ("id", "aggregatetype", "aggregateid", "type", "payload")
        table = with_full_identity(customers(*names))
        table = dataclasses.replace(table, name="outbox_events") if "outbox" in example else table
        before = batch_of((op, old[0] if old else None, new), of=table)
        found = bound(*transforms, to=table).apply(before)
        if expected == "nothing":
            assert found == ()
            continue
        name, brace, _ = expected.partition("{")
        (shown,) = sides(expected)
        assert brace
        assert shown is not None
        (batch,) = found
        assert result(batch, before, {**shown, "": name.strip()}) == f"{name}{dict(shown)}"


def test_the_example_of_a_class_is_that_of_the_package_and_its_configuration_is_accepted() -> None:
    package = ROOT / "examples" / "tidemark-email-domain"
    source = (package / "tidemark_email_domain" / "__init__.py").read_text()
    assert f"```python\n{source[source.index('from ') :]}" in PAGE
    (configuration,) = (each for each in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) if "email_domain" in each)
    (made,) = load_plugins(parse_config(configuration, {}, where="t"), "t").transforms
    assert isinstance(made, EmailDomain)
    assert (made.tables, made.has_column) == (("public.customers",), "email")
    points = tomllib.loads((package / "pyproject.toml").read_text())["project"]["entry-points"]
    assert points == {TRANSFORMS.group: {"email_domain": "tidemark_email_domain:EmailDomain"}}


@pytest.mark.parametrize("name", GIVEN)
def test_each_transform_has_an_example(name: str) -> None:
    assert any(f"{name}(" in example for example in EXAMPLES)
    assert issubclass(getattr(tidemark, name), Transform)
