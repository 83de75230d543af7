"""Which of torch's suites run for which backend, and how many tests they hold.

The test modules build their classes here, and so do the processes that their tests start.
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

#: Tests by backend in torch's lists for the CPU, by torch release.
EXPECTED_TESTS = {"2.13": {"TENSORPIPE": 436, "FAULTY_TENSORPIPE": 28}}


@dataclass(frozen=True)
class Suites:
    """The lists of torch's suites that are run for one backend.

    :param fixture: torch's class that says which backend the suites use and with what options, as
        `module:name`; imported for this backend only, because the one for FAULTY_TENSORPIPE
        registers it, after which two of the suites for TENSORPIPE fail on stock torch
    """

    backend: str
    prefix: str
    fixture: str
    cpu: tuple[type[Any], ...]
    cuda: tuple[type[Any], ...]

    @property
    def runnable(self) -> list[type[Any]]:
        """What can run on this machine: torch's CUDA lists only where there is a device."""
        return [*self.cpu, *(self.cuda if torch.cuda.is_available() else ())]

    @property
    def cuda_tests(self) -> int:
        """How many tests torch's CUDA lists hold."""
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
    """Return torch's test classes for a backend, by name.

    :param module_name: the module that will hold the classes, for processes to import them from
    """
    module, _, name = suites.fixture.partition(":")
    fixture = getattr(importlib.import_module(module), name)
    return generation.generate(suites.prefix, fixture, suites.runnable, module_name)


def torch_release() -> str:
    """Return torch's version without the patch number, as in `2.13`."""
    return ".".join(torch.__version__.split(".")[:2])


def generated_tests(suites: Suites, module: ModuleType) -> int:
    """Count the tests for the CPU in the classes that `module` holds, where pytest collects them."""
    classes = [vars(module).get(f"{suites.prefix}{suite.__name__}") for suite in suites.cpu]
    return sum(_count(class_) for class_ in classes if class_ is not None)


def _count(suite: type[Any]) -> int:
    # Only a TestCase has its tests counted, and torch's suites are mixed into one when generated.
    is_case = issubclass(suite, unittest.TestCase)
    case = suite if is_case else type(suite.__name__, (suite, unittest.TestCase), {})
    return len(unittest.defaultTestLoader.getTestCaseNames(case))
