"""The class with all tests of a transport, for authors to inherit from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rpc_backends_testing.transports import resources
from rpc_backends_testing.transports.closing import ClosingTests
from rpc_backends_testing.transports.errors import ErrorTests
from rpc_backends_testing.transports.limits import Limits
from rpc_backends_testing.transports.losses import LossTests
from rpc_backends_testing.transports.messages import MessageTests
from rpc_backends_testing.transports.replies import ReplyTests
from rpc_backends_testing.transports.second_process import SecondProcess
from rpc_backends_testing.transports.threads import ThreadTests
from rpc_backends_testing.transports.volume import VolumeTests
from rpc_backends_testing.transports.workers import Workers

#: The most workers of a test.
_SIZE = 4


class TransportContract(  # pytest runs the tests of the last base first
    VolumeTests, ClosingTests, ThreadTests, LossTests, ErrorTests, ReplyTests, MessageTests
):
    """Tests of all requirements on a transport, without an agent, in one process or between two.

    Inherit from it in a test module, and say how a transport is made::

        from rpc_backends_testing import TransportContract

        class TestMyTransport(TransportContract):
            def make_transport(self, worker_id):
                return MyTransport()

    pytest then runs all tests. A transport in Python is a :class:`rpc_backends_agents.Transport`; one in
    C++ is an object with a method ``__rpc_transport__``.

    :cvar timeout_factor: multiplies all time limits, for a slow machine.
    :cvar processes: 1, or 2 to have all workers but worker 0 in a second process. That process is
        started anew, and imports the module of the class.
    """

    timeout_factor: float = 1.0
    processes: int = 1
    _limits: Limits | None = None
    _second: SecondProcess | None = None

    def make_transport(self, worker_id: int) -> Any:
        """Return a new transport, which does not listen yet.

        :param worker_id: the id of its worker, from 0 to 3. The ids of a test's workers begin at 0.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no make_transport(worker_id); it must return a new transport."
        )

    def group(self, worker_id: int) -> Any:
        """Return the group of a worker, for a transport that is made from options and a group."""
        from rpc_backends_core.spi import Group, Member

        members = tuple(Member(f"worker{rank}", rank, rank, rank) for rank in range(_SIZE))
        me = members[worker_id]
        return Group(None, me.name, me.rank, _SIZE, members, 10.0, worker_id, token="test")

    def connections(self) -> set[str]:
        """Return names for the connections of this process. By default these are its stream sockets."""
        return resources.connections()

    def cut(self, names: set[str]) -> None:
        """End connections by their names from :meth:`connections`, without telling the transport."""
        resources.cut(names)

    @pytest.fixture
    def transports(self, request: pytest.FixtureRequest) -> Iterator[Workers]:
        """Return the object that starts the workers of a test, each with a transport under test."""
        limits = self._limits_of_class()
        passed, second = limits.passed, self._second_process(request)
        yield Workers(self.make_transport, limits, second)
        if limits.passed > passed:  # a call may still be running there
            self._end_second_process()

    @pytest.fixture
    def cutting(self, request: pytest.FixtureRequest) -> resources.Cutting:
        """Return the object that cuts connections."""
        second = self._second_process(request)
        both = (self.connections, self.cut) if second is None else _both(self, second)
        return resources.Cutting(*both, frozenset(both[0]()))

    def _second_process(self, request: pytest.FixtureRequest) -> SecondProcess | None:
        """Return the second process, started if it is not running; None if there is to be none."""
        kind = type(self)
        if kind.processes not in (1, 2):
            raise ValueError(f"{kind.__name__}.processes is {kind.processes!r}; it must be 1 or 2.")
        if kind.processes == 2 and vars(kind).get("_second") is None:
            kind._second = SecondProcess(kind)
            request.node.getparent(pytest.Class).addfinalizer(kind._end_second_process)
        return kind._second

    @classmethod
    def _end_second_process(cls) -> None:
        """End the second process, if there is one."""
        if cls._second is not None:
            cls._second.stop()
        cls._second = None

    def _limits_of_class(self) -> Limits:
        """Return the limits that all tests of this class share."""
        kind = type(self)
        if kind._limits is None or "_limits" not in vars(kind):
            kind._limits = Limits(self.timeout_factor)
        return kind._limits


def _both(
    here: TransportContract, there: SecondProcess
) -> tuple[Callable[[], set[str]], Callable[[set[str]], None]]:
    """Return ``connections`` and ``cut`` for the connections of both processes."""

    def connections() -> set[str]:
        peers: set[str] = there.call("connections")
        return here.connections() | peers

    def cut(names: set[str]) -> None:
        here.cut(names)
        there.call("cut", names)

    return connections, cut
