"""The kernels that setup.py compiles."""

import ast
from pathlib import Path

SETUP = Path(__file__).resolve().parents[2] / "setup.py"


def kernel_modules() -> list[str]:
    """Return the modules that setup.py compiles, without executing it: that would begin a build."""
    (listed,) = (
        node.value
        for node in ast.parse(SETUP.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "KERNELS"
    )
    modules: list[str] = ast.literal_eval(listed)
    return modules
