"""What packages may import from the core: backends, hook packages, and agents for them.

Everything else of the core has a name with a leading underscore and may change in any release. This
package keeps its names for as long as the first number of :data:`SPI_VERSION` stays the same. A backend
declares the version it was written for (``Backend(spi_version=(1, 0), ...)``), and a hook package by an
attribute ``spi_version`` of what its entry point names. Names are imported when they are first used.

:mod:`.inspection` is for tools that look into the registry; `rpc-backends doctor` is one.
"""

from __future__ import annotations

from rpc_backends_core._lazy import lazy_names

_HOMES = {
    "Backend": "_backend",
    "Capability": "_backend",
    "RankMappingMixin": "_bridge.agents",
    "group_for": "_bridge.agents",
    "worker_info": "_bridge.agents",
    "NEVER": "_bridge.session",
    "Session": "_bridge.session",
    "current_session": "_bridge.session",
    "torch_internals": "_bridge.torch_internals:",
    "Agent": "_contract",
    "COMMITMENTS": "_contract",
    "CONTRACT_VERSION": "_contract",
    "ConstructOptionsHandler": "_contract",
    "InitBackendHandler": "_contract",
    "LeavingAgent": "_contract",
    "BackendConflictError": "_errors",
    "BackendDeniedError": "_errors",
    "BackendLoadError": "_errors",
    "GroupError": "_errors",
    "GroupTimeoutError": "_errors",
    "HookError": "_errors",
    "RefusedError": "_errors",
    "RpcBackendsError": "_errors",
    "SettingError": "_errors",
    "SpiVersionError": "_errors",
    "StoreError": "_errors",
    "UnknownBackendError": "_errors",
    "Group": "_group",
    "Member": "_group",
    "JOIN_PATIENCE": "_time_limit",
    "STORE_PATIENCE": "_group",
    "StoreAccess": "_group",
    "get_all": "_group",
    "join_group": "_group",
    "wait_for": "_group",
    "stored": "_group.contents:",
    "hookimpl": "_hookspecs",
    "Interface": "_interfaces",
    "interface_of": "_interfaces",
    "interfaces": "_interfaces",
    "is_loopback": "_interfaces",
    "Record": "_record",
    "ResolvedBackend": "_record",
    "nearest": "_settings",
    "SPI_VERSION": "_spi_version",
}

__all__ = list(_HOMES)

__getattr__ = lazy_names(__name__, _HOMES)
