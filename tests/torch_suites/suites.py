"""Which of torch's suites run on which backend, and how many tests they contain.

The test modules and the processes of their tests build the test classes here.
"""

from __future__ import annotations

import importlib
import unittest
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from rpc_backends_testing.torch_tier import generation
from rpc_backends_testing.torch_tier.generation import rpc_utils

_FIXTURES = "torch.testing._internal.distributed.rpc"

#: Number of tests in torch's lists for the CPU, by torch release and backend.
EXPECTED_TESTS = {"2.13": {"TENSORPIPE": 436, "FAULTY_TENSORPIPE": 28}}


@dataclass(frozen=True)
class Suites:
    """Torch's lists of suites that are run on one backend.

    :param fixture: torch's class that gives the suites their backend and options, as `module:name`.
        It is imported only for this backend: the one for FAULTY_TENSORPIPE registers that backend, after
        which two of the suites for TENSORPIPE fail on stock torch.
    """

    backend: str
    prefix: str
    fixture: str
    cpu: tuple[type[Any], ...]
    cuda: tuple[type[Any], ...]

    @property
    def runnable(self) -> list[type[Any]]:
        """The lists that can run on this machine: torch's CUDA lists only if there is a CUDA device."""
        return [*self.cpu, *(self.cuda if torch.cuda.is_available() else ())]

    @property
    def cuda_tests(self) -> int:
        """The number of tests in torch's CUDA lists."""
        return sum(_count(suite) for suite in self.cuda)


TENSORPIPE = Suites(
    backend="TENSORPIPE",
    prefix="TensorPipe",
    fixture=f"{_FIXTURES}.tensorpipe_rpc_agent_test_fixture:TensorPipeRpcAgentTestFixture",
    cpu=(*generation.GENERIC, *rpc_utils.TENSORPIPE_TESTS),
    cuda=(*rpc_utils.GENERIC_CUDA_TESTS, *rpc_utils.TENSORPIPE_CUDA_TESTS),
)
FAULTY_TENSORPIPE = Suites(
    backend="FAULTY_TENSORPIPE",
    prefix="Faulty",
    fixture=f"{_FIXTURES}.faulty_rpc_agent_test_fixture:FaultyRpcAgentTestFixture",
    cpu=tuple(rpc_utils.FAULTY_AGENT_TESTS),
    cuda=(),
)
ALL = (TENSORPIPE, FAULTY_TENSORPIPE)


def generate(suites: Suites, module_name: str) -> dict[str, type[Any]]:
    """Return torch's test classes for a backend by name.

    :param module_name: the module that the tests' processes import the classes from.
    """
    module, _, name = suites.fixture.partition(":")
    fixture = getattr(importlib.import_module(module), name)
    return generation.generate(suites.prefix, fixture, suites.runnable, module_name)


def torch_release() -> str:
    """Return torch's version without the patch number, for example `2.13`."""
    return ".".join(torch.__version__.split(".")[:2])


def generated_tests(suites: Suites, module: ModuleType) -> int:
    """Count the CPU tests in the classes of `module`, where pytest collects them."""
    classes = [vars(module).get(f"{suites.prefix}{suite.__name__}") for suite in suites.cpu]
    return sum(_count(class_) for class_ in classes if class_ is not None)


def _count(suite: type[Any]) -> int:
    # Only a TestCase has countable tests; the generated classes mix torch's suites into one.
    is_case = issubclass(suite, unittest.TestCase)
    case = suite if is_case else type(suite.__name__, (suite, unittest.TestCase), {})
    return len(unittest.defaultTestLoader.getTestCaseNames(case))
