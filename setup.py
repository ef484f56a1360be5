"""Builds the kernels when a compiler is there; the same source runs interpreted when none is.

SKIP_CYTHON=1 builds nothing; REQUIRE_CYTHON=1 makes a kernel that cannot be built an error.
Adding a module to KERNELS is a deliberate decision: a profile first.
"""

import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError, CompileError

# Modules with a .pxd beside the .py.
KERNELS = [
    "tidemark.decode.arrow.batch_body",
    "tidemark.decode.arrow.batch_columns",
    "tidemark.decode.catalog.run_index",
    "tidemark.decode.arrow.columns",
    "tidemark.decode.arrow.small_batch",
    "tidemark.decode.copy.copy_fields",
    "tidemark.decode.datum.deforming",
    "tidemark.decode.transactions.catalog_rows",
    "tidemark.decode.transactions.extract",
    "tidemark.decode.transactions.file_versions",
    "tidemark.decode.transactions.held_chunks",
    "tidemark.decode.transactions.pending_rows",
    "tidemark.decode.transactions.record_parts",
    "tidemark.decode.transactions.speculative_rows",
    "tidemark.decode.transactions.pending_children",
    "tidemark.decode.transactions.xid_states",
    "tidemark.decode.datum.lookup",
    "tidemark.decode.datum.row_entries",
    "tidemark.decode.render.datum_text",
    "tidemark.decode.render.line_text",
    "tidemark.decode.render.value_text",
    "tidemark.decode.arrow.text_columns",
    "tidemark.io.node.copy_messages",
    "tidemark.wal.kernel",
    "tidemark.wal.pglz",
    "tidemark.wal.rmgr.end_times",
]
# Cython's own code for the views of memory, three quarters of a small kernel, is compiled once for all of them.
MEMORY_VIEWS = "tidemark.wal.memory_views"
# A kernel calls these functions for each value, with buffers of 200 bytes each: passing them costs more than the work.
MACROS = [("CYTHON_INLINE", "inline __attribute__((always_inline))")]
FLAGS = ["-O3", "-g0", "-Wall", "-Wsign-compare", "-Wconversion"]
SIDE_BY_SIDE_MAX = 8  # compilers; each takes 200 MB
REQUIRED = bool(os.environ.get("REQUIRE_CYTHON"))


def cpus() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class AllKernelsOrNone(build_ext):
    """Kernels call each other past Python: one that is compiled cannot be imported beside one that is not."""

    def finalize_options(self) -> None:
        """Build as many modules at once as this process may use CPUs: pip has no option for that."""
        super().finalize_options()
        self.parallel = self.parallel or min(cpus(), SIDE_BY_SIDE_MAX)

    def build_extensions(self) -> None:
        """Build all, or leave none, nor one of an earlier build in the tree, and let them run interpreted."""
        try:
            super().build_extensions()
        except (BaseError, CCompilerError, CompileError) as error:
            if REQUIRED:
                raise
            self.warn(f"the kernels will run interpreted: {error}")
            for self.inplace in (True, False):
                for kernel in self.extensions:
                    Path(self.get_ext_fullpath(kernel.name)).unlink(missing_ok=True)
            self.extensions = []


def remove_built() -> None:
    """Remove kernels of an earlier build from the tree: they would be imported instead of what is installed now."""
    for name in (*KERNELS, MEMORY_VIEWS):
        folder, _, stem = name.replace(".", "/").rpartition("/")
        for suffix in EXTENSION_SUFFIXES:
            Path(folder, f"{stem}{suffix}").unlink(missing_ok=True)


def kernels() -> list[Extension]:
    """Return the extensions to build: none where SKIP_CYTHON is set or Cython is not installed."""
    if os.environ.get("SKIP_CYTHON"):
        remove_built()
        return []
    try:
        from Cython.Build import cythonize  # noqa: PLC0415 - a build without Cython is a supported build
    except ImportError:
        if REQUIRED:
            raise
        remove_built()
        return []
    return cythonize(
        [
            Extension(MEMORY_VIEWS, [], extra_compile_args=FLAGS),  # Cython creates its source
            *(
                Extension(
                    name,
                    [str(Path(*name.split(".")).with_suffix(".py"))],
                    define_macros=MACROS,
                    extra_compile_args=FLAGS,
                )
                for name in KERNELS
            ),
        ],
        compiler_directives={
            "language_level": 3,
            "annotation_typing": False,
            "boundscheck": True,
            "wraparound": False,  # a negative index is out of bounds
            "initializedcheck": False,  # every view is set by __init__
        },
        build_dir="build/cython",
        shared_utility_qualified_name=MEMORY_VIEWS,
    )


setup(ext_modules=kernels(), cmdclass={"build_ext": AllKernelsOrNone})
