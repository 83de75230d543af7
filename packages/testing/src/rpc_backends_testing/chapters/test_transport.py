"""The transport of a backend, without its agent: the declared one, or that of its init handler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rpc_backends_testing.groups import Groups
from rpc_backends_testing.marks import requirement
from rpc_backends_testing.subject import Subject
from rpc_backends_testing.transports import started
from rpc_backends_testing.transports.contract import TransportContract
from rpc_backends_testing.transports.limits import Limits
from rpc_backends_testing.transports.started import Make
from rpc_backends_testing.transports.workers import Workers

pytestmark = requirement("transport")

#: The workers of a group, of which each test uses the first ones.
_SIZE = 4
#: Seconds that a worker waits at the store for another one.
_STORE_SECONDS = 10.0
_LIMITS: dict[str, Limits] = {}
#: By backend: what makes the transports that its init handler starts, or why the tests do not run.
_FOUND: dict[str, Make | BaseException] = {}


class TestTransport(TransportContract):
    """What the transport of the backend under test promises."""

    @pytest.fixture
    def transports(
        self,
        rpc_subject: Subject,
        rpc_groups: Groups,
        rpc_timeout_factor: float,
        tmp_path: Path,
    ) -> Iterator[Workers]:
        """Return the object that starts workers, each with a transport of the backend."""
        url = f"file://{tmp_path}/meeting"

        def trial(make: Make) -> Any:
            return _Groups(rpc_subject, make, url).transport(0)

        make = _declared(rpc_subject) or _found(rpc_subject, rpc_groups, trial)
        groups = _Groups(rpc_subject, make, url)
        limits = _LIMITS.setdefault(rpc_subject.name, Limits(rpc_timeout_factor))
        yield Workers(groups.transport, limits)


def _declared(subject: Subject) -> Make | None:
    from rpc_backends_core.spi.inspection import default_registry

    return default_registry().backend(subject.name).make_transport


def _found(subject: Subject, groups: Groups, trial: Callable[[Make], Any]) -> Make:
    """Return what makes the transports that the init handler starts; looked for once in this process."""
    maker = _FOUND.get(subject.name)
    if maker is None:
        try:
            maker = started.makes(subject, groups, trial)
        except pytest.skip.Exception as skipped:
            maker = skipped
        _FOUND[subject.name] = maker
    if isinstance(maker, BaseException):
        raise type(maker)(str(maker))
    return maker


class _Groups:
    """Makes the transports of groups that meet at a store of this process, one group after the other.

    :param url: an init method, for the options.
    """

    def __init__(self, subject: Subject, make: Any, url: str) -> None:
        self._subject = subject
        self._make = make
        self._url = url
        self._store: Any = None

    def transport(self, worker_id: int) -> Any:
        """Return the transport of a worker; worker 0 begins a new group."""
        import torch.distributed as dist

        from rpc_backends_core.spi import Group, Member
        from rpc_backends_core.spi.inspection import construct_rpc_backend_options

        if worker_id == 0 or self._store is None:
            self._store = dist.HashStore()
        options = construct_rpc_backend_options(
            self._subject.name, init_method=self._url, **self._subject.options
        )
        members = tuple(Member(f"worker{rank}", rank, rank, rank) for rank in range(_SIZE))
        me = members[worker_id]
        group = Group(
            self._store, me.name, worker_id, _SIZE, members, _STORE_SECONDS, autograd_id=worker_id
        )
        return self._make(options, group)
