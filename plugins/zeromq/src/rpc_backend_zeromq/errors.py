"""What can go wrong when a worker starts: each says what was asked, what was found and what to do."""

from __future__ import annotations

from rpc_backends_core.spi import GroupError, RpcBackendsError


class SecretError(RpcBackendsError, ValueError):
    """A secret that was given is none, cannot be read, or is not the only one."""


class AddressError(GroupError):
    """There is no address that this worker can listen on, or no way to a peer's."""


class ExposureError(AddressError):
    """The worker would listen where others than its peers can reach it, and nothing keeps them out."""


class PublicationError(GroupError):
    """What the store has as the address of a worker is not that worker's, or cannot be believed."""
