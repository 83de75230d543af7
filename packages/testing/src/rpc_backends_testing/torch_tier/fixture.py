"""The fixture by which torch's suites get the backend, its options and its errors."""

from __future__ import annotations

import json
import os
import warnings
from typing import Any

from torch.distributed import rpc

with warnings.catch_warnings():
    # Torch's test modules use deprecated functions of torch when they are imported.
    warnings.simplefilter("ignore")
    from torch.testing._internal.distributed.rpc.rpc_agent_test_fixture import RpcAgentTestFixture

from rpc_backends_core.spi.inspection import settings
from rpc_backends_testing.subject import Subject

#: The variable with the backend for the processes of a test, which get only the name of a class.
VARIABLE = "_RPC_BACKENDS_TORCH_TIER"


def announce(subject: Subject) -> None:
    """Set the backend under test for this process and its children."""
    os.environ.pop(settings.OVERRIDE, None)
    os.environ[VARIABLE] = json.dumps([subject.name, dict(subject.options)])


class Fixture(RpcAgentTestFixture):
    """The backend that :func:`announce` has set."""

    @property
    def rpc_backend(self) -> Any:
        """The member of ``BackendType``."""
        return rpc.BackendType[self._subject.name]

    @property
    def rpc_backend_options(self) -> Any:
        """New options with the test's init method."""
        return rpc.backend_registry.construct_rpc_backend_options(
            self.rpc_backend, init_method=self.init_method, **self._subject.options
        )

    def get_shutdown_error_regex(self) -> str:
        """Return a pattern for errors of a lost peer: any text."""
        return ".+"

    def get_timeout_error_regex(self) -> str:
        """Return a pattern for errors of a timeout; the contract requires this text."""
        return "RPC ran for more than"

    @property
    def _subject(self) -> Subject:
        name, options = json.loads(os.environ[VARIABLE])
        return Subject(name, options)
