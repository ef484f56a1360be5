"""Writes docs/reference.md, the reference of the library: the docstrings and comments of `tidemark.__all__`.

With --check it only compares, and the exit code is 1 if the page is not current.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from pathlib import Path

import tidemark
from tidemark.embedding.stoppable import Stoppable

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference.md"
HEAD = """# Reference of the library

The names of `import tidemark`, from their docstrings: `scripts/reference_page.py` writes this page.
`docs/engine.md` is the tutorial, `docs/transforms.md` shows each transform with an example, and
`docs/consumers.md` describes plug-ins. Everything else in the package is internal.
"""
GROUPS: Sequence[tuple[str, Sequence[str]]] = (
    (
        "The engine",
        ("Engine", "EngineGroup", "AsyncHandler", "EngineState", "EngineSignal", "StopStep", "StopWhen", "ChangeTest"),
    ),
    ("Processors", ("Processor", "ProcessorPart", "WorkerPool")),
    ("Batches and changes", ("Batch", "Change", "Values", "Op", "Partition", "Position", "Epoch")),
    (
        "Tables as of a position",
        ("Relation", "Column", "ReplicaIdentity", "TypeDescription", "TypeKind", "EnumLabel", "Align"),
    ),
    ("Numbers of PostgreSQL", ("Lsn", "TimelineId", "SystemIdentifier", "Oid", "Xid", "FullXid")),
    (
        "Order, commit and poison",
        ("Order", "PoolKind", "CommitPolicy", "Finished", "ALWAYS", "every", "Poison", "PoisonChange"),
    ),
    (
        "Events",
        (
            *(
                "EngineEvent",
                "SchemaEvent",
                "SchemaChange",
                "SchemaEffect",
                "CaptureChange",
                "PartitionEvent",
                "PartitionChange",
                "RewriteBoundary",
                "Truncation",
                "LogicalMessage",
            ),
            *("CopyBoundary", "TransactionBoundary", "TransactionEnd", "TableCount"),
        ),
    ),
    ("Consumers and handlers in the daemons", ("Consumer", "Delivery", "DeliveredItem", "Handler", "Loss", "Rewind")),
    (
        "Transforms",
        (
            *("Transform", "Mask", "Filter", "Route", "Drop", "Rename", "Cast", "Flatten", "ChangedFieldsOnly"),
            *("OutboxRouter", "OnBatch", "OnRow", "TableShape", "BoundTransform"),
        ),
    ),
    (
        "Serializers",
        ("Serializer", "SerializedBatch", "SerializedChange", "SerializedRecord", "DebeziumJson", "FlatJson"),
    ),
    ("Secrets", ("Secret", "secret_file", "secret_environment")),
)
ERRORS = "Errors"
SHOWN = ("__iter__", "__and__", "__or__")
LINE_MAX = 120
LINE = re.compile(r", (\*?\w+: )")  # between two parameters
MODULE = re.compile(r"(?:tidemark|collections\.abc|pathlib|typing|datetime|pyarrow\.lib)\.(?:[a-z_]\w*\.)*(\w+)")
COMMENT = re.compile(r"\s#\s(.*)$")


def page() -> str:
    """Return the page. Every public name is in it once."""
    grouped = {name for _, names in GROUPS for name in names}
    errors = [name for name in tidemark.__all__ if name not in grouped]
    parts = [HEAD]
    for title, names in (*GROUPS, (ERRORS, errors)):
        parts.append(f"\n## {title}\n")
        for name in names:
            parts += ["", *described(name, getattr(tidemark, name), is_error=title == ERRORS)]
    return "\n".join(parts).replace("\n\n\n", "\n\n").rstrip() + "\n"


def described(name: str, found: object, *, is_error: bool) -> Iterator[str]:
    """Yield the lines of one name."""
    if is_error and not (isinstance(found, type) and issubclass(found, Exception)):
        raise SystemExit(f"{name} is no error: add it to a group of this script")
    yield f"### `{name}`\n"
    if isinstance(found, type):
        yield from of_class(found)
    elif inspect.isfunction(found):
        yield f"```python\n{name}{signature(found)}\n```\n"
        yield text(found)
    else:
        yield constant(name, found)


def of_class(found: type) -> Iterator[str]:
    """Yield docstring, constructor, members, and the methods and properties that the class defines."""
    yield text(found)
    inherited = vars(Stoppable) if issubclass(found, Stoppable) else {}
    own = {**inherited, **vars(found)}
    if found is not tidemark.Transform and issubclass(found, tidemark.Transform):
        del own["bind"]  # described with the base
    init = own.get("__init__")
    if inspect.isfunction(init) and init.__doc__:
        yield f"\n```python\n{found.__name__}{signature(init)}\n```\n"
        yield text(init)
    yield "\n".join(["", *members(found), *methods(own)])


def methods(own: Mapping[str, object]) -> Iterator[str]:
    """Yield a list of the methods and properties that a class defines."""
    for name, member in own.items():
        if name.startswith("_") and name not in SHOWN:
            continue
        if isinstance(member, property):
            yield f"- `{name}`: {sentence(member)}"
        elif inspect.isfunction(member) and member.__doc__:
            yield f"- `{name}{signature(member)}`: {sentence(member)}"


def members(found: type) -> Iterator[str]:
    """Yield a list of the members of an enum, or of the fields of a dataclass, with their comments."""
    lines = inspect.getsource(found).splitlines()
    for node in ast.parse(textwrap.dedent("\n".join(lines))).body[0].body:  # type: ignore[attr-defined]
        target: ast.expr | None = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign) and issubclass(found, Enum):
            target = node.targets[0]
        if not isinstance(target, ast.Name) or target.id.startswith("_"):
            continue
        comment = COMMENT.search(lines[node.lineno - 1])
        kind = f": {ast.unparse(node.annotation)}" if isinstance(node, ast.AnnAssign) else ""
        if kind.startswith(": _"):  # a private type: the field is set by methods of the class
            continue
        yield f"- `{target.id}{kind}`" + (f": {comment[1]}" if comment else "")


def constant(name: str, found: object) -> str:
    """Return the docstring below a constant or an alias, from the source of the module that defines it."""
    module = sys.modules[f"tidemark.{tidemark._MODULE_OF[name]}"]  # noqa: SLF001 - of the package itself
    body = ast.parse(inspect.getsource(module)).body
    for node, after in pairwise(body):
        names = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        is_named = any(isinstance(each, ast.Name) and each.id == name for each in names)
        if is_named and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            shown = f" (`{found}`)" if "|" in str(found) else ""
            return inspect.cleandoc(str(after.value.value)) + re.sub(r"tidemark\.[\w.]+\.(\w+)", r"\1", shown)
    raise SystemExit(f"{name} has no docstring below it")


def signature(found: object) -> str:
    """Return a signature without `self`, with short names of types."""
    parameters = inspect.signature(found)  # type: ignore[arg-type]
    kept = [each for name, each in parameters.parameters.items() if name not in ("self", "cls")]
    shown = str(parameters.replace(parameters=kept)).replace("_Always()", "ALWAYS")
    shown = re.sub(
        r"(?:tidemark|collections\.abc|pathlib|typing|datetime|pyarrow\.lib)\.(?:[a-z_]\w*\.)*(\w+)", r"\1", shown
    )
    shown = re.sub(r"<(\w+\.\w+): [^>]*>", r"\1", shown).replace("'", '"').removesuffix(" -> None")
    return shown if len(shown) <= LINE_MAX else LINE.sub(r",\n    \1", shown.replace("(", "(\n    ", 1))


def text(found: object) -> str:
    """Return a docstring; lines of the form `name: what` become a list."""
    doc = inspect.cleandoc(getattr(found, "__doc__", "") or "")
    return re.sub(r"^([a-z_]+(?:, [a-z_]+)*): (?=\S)", r"- `\1`: ", doc, flags=re.MULTILINE)


def sentence(found: object) -> str:
    """Return a docstring as one paragraph of a list."""
    return " ".join(text(found).split())


def main() -> None:
    """Write the page, or compare it."""
    for name in tidemark.__all__:
        getattr(tidemark, name)
    made = page()
    if "--check" not in sys.argv:
        PAGE.write_text(made, encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != made:
        sys.exit("docs/reference.md is not current: run .venv/bin/python scripts/reference_page.py")


if __name__ == "__main__":
    main()
