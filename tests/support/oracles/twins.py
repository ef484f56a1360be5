"""The interpreted twin of a compiled kernel: the same source, loaded again under another name."""

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType


def interpreted(name: str, *, stand_in: Mapping[str, ModuleType] | None = None) -> ModuleType:
    """Load the `.py` of module `name` again; its imports of the modules in `stand_in` get those instead."""
    found = importlib.util.find_spec(name)
    assert found is not None, name
    assert found.origin is not None, name
    source = Path(found.origin).parent / f"{name.rpartition('.')[2]}.py"
    spec = importlib.util.spec_from_file_location(f"interpreted.{name}", source)
    assert spec is not None, source
    assert spec.loader is not None, source
    module = importlib.util.module_from_spec(spec)
    replaced = {other: sys.modules[other] for other in stand_in or {}}
    sys.modules[spec.name] = module
    sys.modules.update(stand_in or {})
    try:
        spec.loader.exec_module(module)
    finally:
        sys.modules.update(replaced)
    return module
