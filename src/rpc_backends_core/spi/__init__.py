"""The public interface of the core for packages with backends, hooks or agents.

The names here stay the same as long as the major number of :data:`SPI_VERSION` does. All other
modules of the core have a leading underscore and may change in any release. A backend declares the
version it was written for with ``Backend(spi_version=(1, 1), ...)``; a hook package declares it with an
attribute ``spi_version`` of the object that its entry point names. Names are imported on first use.

:mod:`.inspection` is for tools that inspect the registry, such as `rpc-backends doctor`.
"""

from __future__ import annotations

from rpc_backends_core._lazy import lazy_names

_HOMES = {
    "Backend": "_backend",
    "Capability": "_backend",
    "RankMappingMixin": "_bridge.agents",
    "check_arguments": "_bridge.agents",
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
    "device_maps": "_device_maps:",
    "ArgumentError": "_errors",
    "BackendConflictError": "_errors",
    "BackendContractError": "_errors",
    "BackendDeniedError": "_errors",
    "BackendLoadError": "_errors",
    "GroupError": "_errors",
    "GroupTimeoutError": "_errors",
    "HookError": "_errors",
    "LockError": "_errors",
    "RefusedError": "_errors",
    "RpcBackendsError": "_errors",
    "SettingError": "_errors",
    "SpiVersionError": "_errors",
    "StoreError": "_errors",
    "UnknownBackendError": "_errors",
    "at_exit": "_exit",
    "Group": "_group",
    "GroupTerm": "_group.terms",
    "Member": "_group",
    "JOIN_TIMEOUT": "_time_limit",
    "STORE_TIMEOUT": "_group",
    "StoreAccess": "_group",
    "get_all": "_group",
    "join_group": "_group",
    "wait_for": "_group",
    "processes": "_group.processes:",
    "stored": "_group.contents:",
    "check_option_names": "_handlers",
    "hookimpl": "_hookspecs",
    "Interface": "_interfaces",
    "interface_of": "_interfaces",
    "interfaces": "_interfaces",
    "is_loopback": "_interfaces",
    "Record": "_record",
    "ResolvedBackend": "_record",
    "nearest": "_settings",
    "parse_boolean": "_settings",
    "SPI_VERSION": "_spi_version",
}

__all__ = list(_HOMES)

__getattr__ = lazy_names(__name__, _HOMES)
