"""Renders a view: a table of names and values for people, one JSON object for machines."""

import json
from collections.abc import Mapping, Sequence

import click

Shown = str | int | float | bool | None
Tree = Shown | Mapping[str, "Tree"] | Sequence["Tree"]


def show(tree: Mapping[str, Tree], *, as_json: bool) -> None:
    """Print a tree of names and values."""
    if as_json:
        click.echo(json.dumps(tree, ensure_ascii=False))
        return
    for line in _lines(tree, 0):
        click.echo(line)


def _lines(tree: Mapping[str, Tree], depth: int) -> list[str]:
    width = max((len(name) for name in tree), default=0)
    lines = []
    for name, value in tree.items():
        label = f"{'  ' * depth}{name.replace('_', ' ')}"
        if isinstance(value, Mapping):
            lines += [f"{label}:", *(_lines(value, depth + 1) or [f"{'  ' * (depth + 1)}none"])]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            lines += [f"{label}:", *(f"{'  ' * (depth + 1)}{item}" for item in value or ["none"])]
        else:
            lines.append(f"{label:<{width + 2 * depth}}  {'-' if value is None else value}")
    return lines
