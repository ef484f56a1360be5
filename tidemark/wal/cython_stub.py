"""Replaces the module `cython` if Cython is not installed: the kernels then run interpreted."""

from contextlib import AbstractContextManager, nullcontext

compiled = False
nogil: AbstractContextManager[None] = nullcontext()
