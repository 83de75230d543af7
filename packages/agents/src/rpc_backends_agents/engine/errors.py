"""The errors of starting a worker. Each says what was asked, what was found and what to do."""

from __future__ import annotations

from rpc_backends_core.spi import GroupError, RpcBackendsError


class SecretError(RpcBackendsError, ValueError):
    """A secret is invalid or unreadable, or two sources give different secrets."""


class AddressError(GroupError):
    """This worker has no address to listen on, or cannot reach a peer's address."""


class ExposureError(AddressError):
    """The worker would listen on an address that is exposed to other processes, without protection."""


class PublicationError(GroupError):
    """The store's record of a worker's address is not that worker's, or cannot be trusted."""
