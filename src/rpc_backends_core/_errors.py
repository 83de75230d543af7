"""Error types. Each message says what was asked for, what was found and what to do."""

from __future__ import annotations


class RpcBackendsError(Exception):
    """Base class of all errors that this package defines.

    :cvar of_result: whether it refuses a result, whatever the sender has made its pickle look like.
    """

    of_result = False


class UnknownBackendError(RpcBackendsError, AttributeError, KeyError):
    """No backend of that name is registered, installed or built into torch.

    It is an ``AttributeError``, so that ``hasattr(BackendType, name)`` is False, and a ``KeyError``
    for ``BackendType[name]``.
    """

    def __str__(self) -> str:
        # KeyError would show the repr of the message.
        return str(self.args[0]) if self.args else ""


class BackendConflictError(RpcBackendsError, RuntimeError):
    """Two or more installed packages declare a backend of the same name."""


class BackendDeniedError(RpcBackendsError, RuntimeError):
    """The backend is installed, but an environment variable forbids its use."""


class BackendLoadError(RpcBackendsError, RuntimeError):
    """An installed backend cannot be used; ``__cause__`` is the reason."""


class BackendContractError(RpcBackendsError, RuntimeError):
    """A handler of a backend, or its transport, returned something that the contract does not allow.

    The message names the backend, its package and the handler.
    """


class SpiVersionError(RpcBackendsError, RuntimeError):
    """A package was written for another version of ``rpc_backends_core.spi``."""


class LockError(RpcBackendsError, RuntimeError):
    """The installed packages differ from the lock that ``RPC_BACKENDS_LOCK`` names; none is loaded."""


class HookError(RpcBackendsError, RuntimeError):
    """A hook package failed; the message names the package, ``__cause__`` is the reason."""


class SettingError(RpcBackendsError, ValueError):
    """An environment variable ``RPC_BACKENDS_...`` has an invalid value."""


class RefusedError(RpcBackendsError, RuntimeError):
    """Raised by a hook that forbids something on purpose, for example as site policy.

    The error reaches the caller unchanged. Any other exception that a hook raises becomes a
    :class:`HookError` that names the hook's package.
    """


class ArgumentError(RpcBackendsError, TypeError):
    """A backend's init handler got a store or options of a wrong type."""


class ResultError(RpcBackendsError, AttributeError, RuntimeError):
    """This worker cannot unpickle a call's result, for example because it lacks the result's class.

    ``__cause__`` is pickle's error. ``to_here`` raises this error. ``rpc_sync`` and ``Future.wait`` raise
    a ``RuntimeError`` with its text, as torch does for most exceptions.
    """


class GroupError(RpcBackendsError, RuntimeError):
    """A group could not be formed; all its workers raise the same message."""


class GroupTimeoutError(GroupError, TimeoutError):
    """A group was not complete in time; the message names the missing workers."""


class StoreError(GroupError):
    """A group's store is unusable: lost, not answering, or holding data that no worker wrote."""
