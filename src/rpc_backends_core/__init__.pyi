"""RPC backends for PyTorch that you can pip install: the public API."""

from torch.distributed.rpc.backend_registry import BackendValue as BackendValue

from rpc_backends_core._api import backend_registered as backend_registered
from rpc_backends_core._api import (
    construct_rpc_backend_options as construct_rpc_backend_options,
)
from rpc_backends_core._api import init_backend as init_backend
from rpc_backends_core._api import record as record
from rpc_backends_core._api import records as records
from rpc_backends_core._api import refresh as refresh
from rpc_backends_core._api import register_backend as register_backend
from rpc_backends_core._api import unregister_backend as unregister_backend
from rpc_backends_core._backend import Backend as Backend
from rpc_backends_core._backend import Capability as Capability
from rpc_backends_core._backend_type import BackendType as BackendType
from rpc_backends_core._bridge.running import CurrentBackend as CurrentBackend
from rpc_backends_core._bridge.running import current_backend as current_backend
from rpc_backends_core._errors import BackendConflictError as BackendConflictError
from rpc_backends_core._errors import BackendContractError as BackendContractError
from rpc_backends_core._errors import BackendDeniedError as BackendDeniedError
from rpc_backends_core._errors import BackendLoadError as BackendLoadError
from rpc_backends_core._errors import LockError as LockError
from rpc_backends_core._errors import RefusedError as RefusedError
from rpc_backends_core._errors import ResultError as ResultError
from rpc_backends_core._errors import RpcBackendsError as RpcBackendsError
from rpc_backends_core._errors import SettingError as SettingError
from rpc_backends_core._errors import UnknownBackendError as UnknownBackendError
from rpc_backends_core._hookspecs import hookimpl as hookimpl
from rpc_backends_core._patches import install as install
from rpc_backends_core._patches import is_installed as is_installed
from rpc_backends_core._patches import uninstall as uninstall
from rpc_backends_core._record import Record as Record

__version__: str
