"""Stands in for the module `cython` where Cython is not installed: the kernels then run interpreted."""

from contextlib import AbstractContextManager, nullcontext

compiled = False
nogil: AbstractContextManager[None] = nullcontext()
