"""What can go wrong, as types: each message says what was asked, what was found and what to do."""

from __future__ import annotations


class RpcBackendsError(Exception):
    """Base of every error this package raises on its own account."""


class UnknownBackendError(RpcBackendsError, AttributeError, KeyError):
    """No backend of that name is registered, installed or part of torch.

    It is an ``AttributeError`` (``hasattr(BackendType, name)`` is then False) and a ``KeyError``
    (``BackendType[name]``).
    """

    def __str__(self) -> str:
        # KeyError would show the repr of the message.
        return str(self.args[0]) if self.args else ""


class BackendConflictError(RpcBackendsError, RuntimeError):
    """Two or more installed packages declare a backend of the same name."""


class BackendDeniedError(RpcBackendsError, RuntimeError):
    """The backend is installed, and an environment variable forbids its use."""


class BackendLoadError(RpcBackendsError, RuntimeError):
    """An installed backend cannot be used; ``__cause__`` has the reason."""


class SpiVersionError(RpcBackendsError, RuntimeError):
    """A package was written for another version of ``rpc_backends_core.spi``."""


class HookError(RpcBackendsError, RuntimeError):
    """A hook package failed; the text names the package, ``__cause__`` has the reason."""


class SettingError(RpcBackendsError, ValueError):
    """An environment variable ``RPC_BACKENDS_...`` has a value that means nothing."""


class RefusedError(RpcBackendsError, RuntimeError):
    """Raised by a hook that forbids something on purpose (site policy, say).

    It reaches the caller as it is. Any other exception that a hook raises of its own becomes a
    :class:`HookError` that names the hook's package.
    """


class GroupError(RpcBackendsError, RuntimeError):
    """A group of workers could not be formed; every worker of it gets the same text."""


class GroupTimeoutError(GroupError, TimeoutError):
    """A group was not complete in time; the text names who was there and who was not."""


class StoreError(GroupError):
    """The store of a group cannot be used: it is lost, does not answer, or holds what no worker wrote."""
