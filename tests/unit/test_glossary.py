"""The glossary: each module that it names exists, each term has one line, and the lines are in order."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
FOLDERS = {  # of each package
    "tidemark": ROOT,
    "tidemark_sidecar": ROOT / "sidecar",
    "tidemark_archiver": ROOT / "archiver",
    "tidemark_ctl": ROOT / "ctl",
}
ROW = re.compile(r"^\| (?P<term>[^|]+?) \| [^|]+ \|(?: `(?P<module>[\w.]+)`)? \|$", re.MULTILINE)
HEADER = "term"
GROUPS = GLOSSARY.split("\n## ")[1:]
LINKED_FROM = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/design/README.md")


def _rows(text: str) -> list[re.Match[str]]:
    return [row for row in ROW.finditer(text) if row["term"] != HEADER]


def test_each_module_that_the_glossary_names_exists() -> None:
    named = {row["module"] for row in _rows(GLOSSARY) if row["module"]}
    files = {module: FOLDERS[module.split(".")[0]].joinpath(*module.split(".")) for module in named}
    assert named
    assert [name for name, path in files.items() if not (path.with_suffix(".py").is_file() or path.is_dir())] == []


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.partition("\n")[0])
def test_each_line_of_a_group_is_a_term_in_alphabetical_order(group: str) -> None:
    terms = [row["term"] for row in _rows(group)]
    lines = [line for line in group.splitlines() if line.startswith("| ")]
    assert len(lines) == len(terms) + 1
    assert terms == sorted(terms, key=lambda term: (term.lower(), term))


def test_no_term_has_two_lines() -> None:
    terms = [name for row in _rows(GLOSSARY) for name in row["term"].split(", ")]
    assert sorted(set(terms)) == sorted(terms)


@pytest.mark.parametrize("page", LINKED_FROM)
def test_the_pages_that_newcomers_read_first_link_the_glossary(page: str) -> None:
    assert "glossary.md" in (ROOT / page).read_text(encoding="utf-8")
