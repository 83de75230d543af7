"""Makes test classes of torch's suites for a backend, as torch's own test files do.

A suite of torch is a mixin. It needs a fixture (backend, options, error texts) and a base that starts the
processes. Here a fork server starts them, and the files that they leave are removed.
"""

from __future__ import annotations

import unittest
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.distributed import rpc

from rpc_backends_testing.torch_tier import processes

with warnings.catch_warnings():
    # Torch's test modules use deprecated functions of torch when they are imported.
    warnings.simplefilter("ignore")
    from torch.testing._internal.dist_utils import worker_name
    from torch.testing._internal.distributed import rpc_utils

#: The suites that suit any backend.
GENERIC: tuple[type[Any], ...] = tuple(rpc_utils.GENERIC_TESTS)

#: The suites for tensors on CUDA devices. Torch runs those named for TensorPipe on no other backend.
CUDA: tuple[type[Any], ...] = (*rpc_utils.GENERIC_CUDA_TESTS, *rpc_utils.TENSORPIPE_CUDA_TESTS)

_WRONG_TYPES = "test_wrong_types"
#: Seconds by which these tests delay a call whose time-out is 2 s. Torch delays it by 2 s, too, so the
#: time-out fires unless the reply comes within the same millisecond, as it does on an idle machine.
#: The same delay must outlast a time-out of a millisecond: both have a second on a busy machine.
_DELAY = 1.0
_DELAYED = (
    "test_udf_remote_message_delay_timeout",
    "test_remote_message_builtin_delay_timeout",
    "test_remote_message_script_delay_timeout",
)

#: Tests that are changed, with the reason.
ADAPTED = {
    _WRONG_TYPES: "init_rpc takes a name here",
    **dict.fromkeys(_DELAYED, "torch delays the call by all of its time-out"),
}

#: Tests that fail without this project, too, and the releases of torch in which that was seen.
FAILING_IN_TORCH = {"test_profiler_rpc_key_names": ("2.6", "2.9")}


def generate(
    prefix: str, fixture: type[Any], suites: Iterable[type[Any]], module_name: str
) -> dict[str, type[Any]]:
    """Return a test class for each of torch's suites, by name.

    :param prefix: the prefix of the names.
    :param fixture: a subclass of torch's ``RpcAgentTestFixture``.
    :param module_name: the module that will hold the classes, for processes to import them from.
    """
    classes: dict[str, type[Any]] = rpc_utils.generate_tests(
        prefix, fixture, list(suites), module_name
    )
    for class_ in classes.values():
        class_._spawn_processes = processes.start
        class_.tearDown = _tear_down(class_)
        class_.setup_fault_injection = _setup_fault_injection(class_)
        if is_adapted(_WRONG_TYPES) and hasattr(class_, _WRONG_TYPES):
            setattr(class_, _WRONG_TYPES, _test_wrong_types)
        _skip_failing_tests(class_)
    return classes


def _skip_failing_tests(class_: type[Any]) -> None:
    release = ".".join(torch.__version__.split(".")[:2])
    for test, releases in FAILING_IN_TORCH.items():
        if release in releases and hasattr(class_, test):
            skip = unittest.skip(f"it fails with torch {release} alone, too")
            setattr(class_, test, skip(getattr(class_, test)))


def bridge_is_installed() -> bool:
    """Return whether this project's `init_rpc`, which accepts names, is installed in torch."""
    return getattr(rpc.BackendType, "__module__", "").startswith("rpc_backends_core")


def is_adapted(test: str) -> bool:
    """Return whether a test of torch is changed here; stock torch needs only some of the changes."""
    return test in ADAPTED and (test != _WRONG_TYPES or bridge_is_installed())


def _setup_fault_injection(class_: type[Any]) -> Any:
    inherited = class_.setup_fault_injection

    def setup_fault_injection(self: Any, messages: Any, delays: dict[str, float] | None) -> None:
        if delays is not None and self._testMethodName in _DELAYED:
            delays = {message: min(seconds, _DELAY) for message, seconds in delays.items()}
        inherited(self, messages, delays)

    return setup_fault_injection


def _tear_down(class_: type[Any]) -> Any:
    inherited = class_.tearDown

    def tear_down(self: Any) -> None:
        inherited(self)
        # Torch creates this file for the rendezvous, and some tests a second one with a suffix. It
        # removes neither.
        meeting_point = Path(self.file_name)
        for file in meeting_point.parent.glob(f"{meeting_point.name}*"):
            file.unlink(missing_ok=True)

    return tear_down


def _test_wrong_types(self: Any) -> None:
    """Torch's `RpcTest.test_wrong_types`, but with a backend that is neither a name nor a member.

    Torch passes the string "TENSORPIPE" and expects it to be refused. The rest is torch's.
    """
    with self.assertRaisesRegex(
        TypeError,
        "Argument backend must be a member of BackendType",
    ):
        rpc.init_rpc(
            name=worker_name(self.rank),
            rank=self.rank,
            world_size=self.world_size,
            backend=3,
        )

    with self.assertRaisesRegex(
        TypeError,
        "Argument rpc_backend_options must be an instance of RpcBackendOptions",
    ):
        rpc.init_rpc(
            name=worker_name(self.rank),
            rank=self.rank,
            world_size=self.world_size,
            backend=self.rpc_backend,
            rpc_backend_options={"init_method": self.init_method},
        )
