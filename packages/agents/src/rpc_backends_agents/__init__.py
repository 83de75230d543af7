"""RPC agents to build backends on: a backend only has to provide a :class:`Transport`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rpc_backends_agents._C import (
        Call,
        Recorder,
        RequestPolicy,
        RequestRule,
        Telemetry,
        TransportAgent,
        add_audit_entry,
        current_span,
        describe_guard,
        keep_audit_entries,
        set_span,
        take_audit_entries,
        take_caller,
    )
    from rpc_backends_agents.calls import CallInterceptor
    from rpc_backends_agents.interception import intercept, record_calls, report_calls
    from rpc_backends_agents.native_transport import in_python
    from rpc_backends_agents.settings import Settings
    from rpc_backends_agents.start import start_agent, taking_transports
    from rpc_backends_agents.transport import Inbox, Transport

__all__ = [
    "Call",
    "CallInterceptor",
    "Inbox",
    "Recorder",
    "RequestPolicy",
    "RequestRule",
    "Settings",
    "Telemetry",
    "Transport",
    "TransportAgent",
    "add_audit_entry",
    "current_span",
    "describe_guard",
    "in_python",
    "include_dir",
    "intercept",
    "keep_audit_entries",
    "record_calls",
    "report_calls",
    "set_span",
    "start_agent",
    "take_audit_entries",
    "take_caller",
    "taking_transports",
]
__version__ = "0.1.0"

_MODULES = {
    "Call": "_C",
    "CallInterceptor": "calls",
    "Inbox": "transport",
    "Recorder": "_C",
    "RequestPolicy": "_C",
    "RequestRule": "_C",
    "Settings": "settings",
    "Telemetry": "_C",
    "Transport": "transport",
    "TransportAgent": "_C",
    "take_audit_entries": "_C",
    "keep_audit_entries": "_C",
    "add_audit_entry": "_C",
    "describe_guard": "_C",
    "current_span": "_C",
    "in_python": "native_transport",
    "intercept": "interception",
    "record_calls": "interception",
    "report_calls": "interception",
    "set_span": "_C",
    "start_agent": "start",
    "take_caller": "_C",
    "taking_transports": "start",
}


def include_dir() -> str:
    """Return the C++ include folder, with ``rpc_backends_agents/transport.h`` and ``interceptor.h``."""
    return str(Path(__file__).parent / "include")


def __getattr__(name: str) -> Any:
    """Import on first use: not every use of this package needs the extension.

    :raises SpiVersionError: the installed core is too old or too new.
    :raises ImportError: there is no build for the installed torch.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from rpc_backends_agents.versions import check_core

    check_core()
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
