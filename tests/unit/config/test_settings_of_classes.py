"""A class receives the settings that it reads: sections of the configuration or values, never all of it."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDERS = ("tidemark", "sidecar", "archiver", "ctl")


def test_no_class_receives_or_keeps_the_whole_configuration() -> None:
    classes = [
        (path, node)
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    assert len(classes) > 500
    assert [f"{path.relative_to(ROOT)}: {node.name}" for path, node in classes if _receives_all(node)] == []


def _receives_all(node: ast.ClassDef) -> bool:
    return any(_names_all(annotation) for statement in node.body for annotation in _annotations(statement))


def _annotations(statement: ast.stmt) -> list[ast.expr | None]:
    """Return the types of a field, or of the parameters of a constructor."""
    if isinstance(statement, ast.AnnAssign):
        return [statement.annotation]
    if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
        arguments = statement.args
        return [each.annotation for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return []


def _names_all(annotation: ast.expr | None) -> bool:
    return annotation is not None and any(
        isinstance(part, ast.Name) and part.id == "Config" for part in ast.walk(annotation)
    )
