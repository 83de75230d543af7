from __future__ import annotations

from rpc_backends_core import _device_maps as device_maps
from rpc_backends_core._backend import Backend as Backend
from rpc_backends_core._backend import Capability as Capability
from rpc_backends_core._bridge import torch_internals as torch_internals
from rpc_backends_core._bridge.agents import RankMappingMixin as RankMappingMixin
from rpc_backends_core._bridge.agents import check_arguments as check_arguments
from rpc_backends_core._bridge.agents import group_for as group_for
from rpc_backends_core._bridge.agents import worker_info as worker_info
from rpc_backends_core._bridge.session import NEVER as NEVER
from rpc_backends_core._bridge.session import Session as Session
from rpc_backends_core._bridge.session import current_session as current_session
from rpc_backends_core._contract import COMMITMENTS as COMMITMENTS
from rpc_backends_core._contract import CONTRACT_VERSION as CONTRACT_VERSION
from rpc_backends_core._contract import Agent as Agent
from rpc_backends_core._contract import ConstructOptionsHandler as ConstructOptionsHandler
from rpc_backends_core._contract import InitBackendHandler as InitBackendHandler
from rpc_backends_core._contract import LeavingAgent as LeavingAgent
from rpc_backends_core._errors import ArgumentError as ArgumentError
from rpc_backends_core._errors import BackendConflictError as BackendConflictError
from rpc_backends_core._errors import BackendContractError as BackendContractError
from rpc_backends_core._errors import BackendDeniedError as BackendDeniedError
from rpc_backends_core._errors import BackendLoadError as BackendLoadError
from rpc_backends_core._errors import GroupError as GroupError
from rpc_backends_core._errors import GroupTimeoutError as GroupTimeoutError
from rpc_backends_core._errors import HookError as HookError
from rpc_backends_core._errors import LockError as LockError
from rpc_backends_core._errors import RefusedError as RefusedError
from rpc_backends_core._errors import RpcBackendsError as RpcBackendsError
from rpc_backends_core._errors import SettingError as SettingError
from rpc_backends_core._errors import SpiVersionError as SpiVersionError
from rpc_backends_core._errors import StoreError as StoreError
from rpc_backends_core._errors import UnknownBackendError as UnknownBackendError
from rpc_backends_core._exit import at_exit as at_exit
from rpc_backends_core._group import STORE_TIMEOUT as STORE_TIMEOUT
from rpc_backends_core._group import Group as Group
from rpc_backends_core._group import Member as Member
from rpc_backends_core._group import StoreAccess as StoreAccess
from rpc_backends_core._group import contents as stored
from rpc_backends_core._group import get_all as get_all
from rpc_backends_core._group import join_group as join_group
from rpc_backends_core._group import processes as processes
from rpc_backends_core._group import wait_for as wait_for
from rpc_backends_core._group.terms import GroupTerm as GroupTerm
from rpc_backends_core._handlers import check_option_names as check_option_names
from rpc_backends_core._hookspecs import hookimpl as hookimpl
from rpc_backends_core._interfaces import Interface as Interface
from rpc_backends_core._interfaces import interface_of as interface_of
from rpc_backends_core._interfaces import interfaces as interfaces
from rpc_backends_core._interfaces import is_loopback as is_loopback
from rpc_backends_core._record import Record as Record
from rpc_backends_core._record import ResolvedBackend as ResolvedBackend
from rpc_backends_core._settings import nearest as nearest
from rpc_backends_core._settings import parse_boolean as parse_boolean
from rpc_backends_core._spi_version import SPI_VERSION as SPI_VERSION
from rpc_backends_core._time_limit import JOIN_TIMEOUT as JOIN_TIMEOUT

__all__ = [
    "COMMITMENTS",
    "CONTRACT_VERSION",
    "JOIN_TIMEOUT",
    "NEVER",
    "SPI_VERSION",
    "STORE_TIMEOUT",
    "Agent",
    "ArgumentError",
    "Backend",
    "BackendConflictError",
    "BackendContractError",
    "BackendDeniedError",
    "BackendLoadError",
    "Capability",
    "ConstructOptionsHandler",
    "Group",
    "GroupError",
    "GroupTerm",
    "GroupTimeoutError",
    "HookError",
    "InitBackendHandler",
    "Interface",
    "LeavingAgent",
    "LockError",
    "Member",
    "RankMappingMixin",
    "Record",
    "RefusedError",
    "ResolvedBackend",
    "RpcBackendsError",
    "Session",
    "SettingError",
    "SpiVersionError",
    "StoreAccess",
    "StoreError",
    "UnknownBackendError",
    "at_exit",
    "check_arguments",
    "check_option_names",
    "current_session",
    "device_maps",
    "get_all",
    "group_for",
    "hookimpl",
    "interface_of",
    "interfaces",
    "is_loopback",
    "join_group",
    "nearest",
    "parse_boolean",
    "processes",
    "stored",
    "torch_internals",
    "wait_for",
    "worker_info",
]
