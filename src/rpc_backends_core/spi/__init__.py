"""What packages may import from the core: backends, hook packages, and agents for them.

Everything else of the core has a name with a leading underscore and may change in any release. This
package keeps its names for as long as the first number of :data:`SPI_VERSION` stays the same. A backend
declares the version it was written for (``Backend(spi_version=(1, 0), ...)``), and a hook package by an
attribute ``spi_version`` of what its entry point names.

:mod:`.inspection` is for tools that look into the registry; `rpc-backends doctor` is one.
"""

from __future__ import annotations

from rpc_backends_core._backend import Backend, Capability
from rpc_backends_core._bridge import torch_internals
from rpc_backends_core._bridge.agents import RankMappingMixin, group_for, worker_info
from rpc_backends_core._bridge.session import NEVER, Session
from rpc_backends_core._contract import (
    COMMITMENTS,
    CONTRACT_VERSION,
    Agent,
    ConstructOptionsHandler,
    InitBackendHandler,
    LeavingAgent,
)
from rpc_backends_core._errors import (
    BackendConflictError,
    BackendDeniedError,
    BackendLoadError,
    GroupError,
    GroupTimeoutError,
    HookError,
    RefusedError,
    RpcBackendsError,
    SettingError,
    SpiVersionError,
    UnknownBackendError,
)
from rpc_backends_core._group import Group, Member, get_all, join_group, wait_for
from rpc_backends_core._hookspecs import hookimpl
from rpc_backends_core._interfaces import Interface, interface_of, interfaces, is_loopback
from rpc_backends_core._process_state import STATE
from rpc_backends_core._record import Record, ResolvedBackend
from rpc_backends_core._settings import nearest
from rpc_backends_core._spi_version import SPI_VERSION

__all__ = [
    "COMMITMENTS",
    "CONTRACT_VERSION",
    "NEVER",
    "SPI_VERSION",
    "Agent",
    "Backend",
    "BackendConflictError",
    "BackendDeniedError",
    "BackendLoadError",
    "Capability",
    "ConstructOptionsHandler",
    "Group",
    "GroupError",
    "GroupTimeoutError",
    "HookError",
    "InitBackendHandler",
    "Interface",
    "LeavingAgent",
    "Member",
    "RankMappingMixin",
    "Record",
    "RefusedError",
    "ResolvedBackend",
    "RpcBackendsError",
    "Session",
    "SettingError",
    "SpiVersionError",
    "UnknownBackendError",
    "current_session",
    "get_all",
    "group_for",
    "hookimpl",
    "interface_of",
    "interfaces",
    "is_loopback",
    "join_group",
    "nearest",
    "torch_internals",
    "wait_for",
    "worker_info",
]


def current_session() -> Session | None:
    """Return the session that starts or runs in this process, None where RPC is not initialised."""
    session: Session | None = STATE.session
    return session
