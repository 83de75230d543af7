"""The class with all tests of a transport, for authors to inherit from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rpc_backends_testing.transports import resources
from rpc_backends_testing.transports.closing import ClosingTests
from rpc_backends_testing.transports.errors import ErrorTests
from rpc_backends_testing.transports.limits import Limits
from rpc_backends_testing.transports.losses import LossTests
from rpc_backends_testing.transports.messages import MessageTests
from rpc_backends_testing.transports.replies import ReplyTests
from rpc_backends_testing.transports.threads import ThreadTests
from rpc_backends_testing.transports.workers import Workers


class TransportContract(  # pytest runs the tests of the last base first
    ClosingTests, ThreadTests, LossTests, ErrorTests, ReplyTests, MessageTests
):
    """Tests of all requirements on a transport, in one process and without an agent.

    Inherit from it in a test module, and say how a transport is made::

        from rpc_backends_testing import TransportContract

        class TestMyTransport(TransportContract):
            def make_transport(self, worker_id):
                return MyTransport()

    pytest then runs all tests. A transport in Python is a :class:`rpc_backends_agents.Transport`; one in
    C++ is an object with a method ``__rpc_transport__``.

    :cvar timeout_factor: multiplies all time limits, for a slow machine.
    """

    timeout_factor: float = 1.0
    _limits: Limits | None = None

    def make_transport(self, worker_id: int) -> Any:
        """Return a new transport, which does not listen yet.

        :param worker_id: the id of its worker, from 0 to 3. The ids of a test's workers begin at 0.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no make_transport(worker_id); it must return a new transport."
        )

    def connections(self) -> set[str]:
        """Return names for the connections of this process. By default these are its stream sockets."""
        return resources.connections()

    def cut(self, names: set[str]) -> None:
        """End connections by their names from :meth:`connections`, without telling the transport."""
        resources.cut(names)

    @pytest.fixture
    def transports(self) -> Iterator[Workers]:
        """Return the object that starts the workers of a test, each with a transport under test."""
        yield Workers(self.make_transport, self._limits_of_class())

    @pytest.fixture
    def cutting(self) -> resources.Cutting:
        """Return the object that cuts connections."""
        return resources.Cutting(self.connections, self.cut, frozenset(self.connections()))

    def _limits_of_class(self) -> Limits:
        """Return the limits that all tests of this class share."""
        kind = type(self)
        if kind._limits is None or "_limits" not in vars(kind):
            kind._limits = Limits(self.timeout_factor)
        return kind._limits
