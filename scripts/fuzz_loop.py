"""Fuzzes one target under atheris in a separate process: libFuzzer ends it, by time or at the first input that fails.

python scripts/fuzz_loop.py NAME LIBFUZZER_ARGUMENT...
"""

import inspect
import sys
from types import FunctionType

import atheris

with atheris.instrument_imports(include=["tidemark"], enable_loader_override=False):
    from tests.support.forged.byte_targets.table import TARGETS


def instrument_twins() -> None:
    """Instrument the interpreted kernels too: they were not loaded by an import statement."""
    for name, module in list(sys.modules.items()):
        if name.startswith("interpreted."):
            owners = [
                module,
                *(cls for _, cls in inspect.getmembers(module, inspect.isclass) if cls.__module__ == name),
            ]
            for owner in owners:
                for function in vars(owner).values():
                    if isinstance(function, FunctionType) and function.__module__ == name:
                        atheris.instrument_func(function)


def main() -> None:
    """Fuzz one target."""
    name, *arguments = sys.argv[1:]
    instrument_twins()
    atheris.Setup([name, *arguments], TARGETS[name].run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
