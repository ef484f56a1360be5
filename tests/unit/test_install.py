"""`scripts/install`: what it leaves in .venv."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_program_beside_the_tree_imports_the_package_and_not_the_folder(tmp_path: Path) -> None:
    tree = tmp_path / "tidemark"
    for folder in ("scripts", "tidemark", "sidecar", "archiver", "ctl"):
        (tree / folder).mkdir(parents=True)
    for name in ("scripts/install", "pyproject.toml", "setup.py", "tidemark/__init__.py"):
        shutil.copy(ROOT / name, tree / name)
    (tree / "tidemark/__init__.py").write_text("")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tree / ".venv")], check=True)
    installed = (ROOT / "pyproject.toml").read_text() + (ROOT / "setup.py").read_text()
    (tree / ".venv/.installed").write_text(installed)  # the packages are installed already
    subprocess.run([tree / "scripts/install"], check=True, cwd="/")

    program = [str(tree / ".venv/bin/python"), "-c", "import tidemark; print(tidemark.__file__)"]
    done = subprocess.run(program, check=True, capture_output=True, text=True, cwd=tmp_path, env={})
    assert done.stdout.strip() == str(tree / "tidemark/__init__.py")
