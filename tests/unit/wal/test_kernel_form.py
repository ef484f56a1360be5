"""A suite runs the form of the kernels that it states: compiled, or the same source interpreted."""

import os
from importlib import import_module

import pytest

from tests.support.kernels import kernel_modules

EXPECTED = os.environ.get("TIDEMARK_EXPECT_KERNELS")


@pytest.mark.skipif(EXPECTED is None, reason="scripts/test states which form it has built")
@pytest.mark.parametrize("kernel", kernel_modules())
def test_a_kernel_has_the_form_that_the_suite_states(kernel: str) -> None:
    module = import_module(kernel)
    assert module.__file__ is not None
    assert ("interpreted" if module.__file__.endswith(".py") else "compiled") == EXPECTED
