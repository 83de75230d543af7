"""Checks that the installed core is one that the agents fit."""

from __future__ import annotations

#: The version of ``rpc_backends_core.spi`` that the agents were written for.
SPI_VERSION = (1, 1)


def check_core() -> None:
    """Check the version of the core's interface.

    :raises SpiVersionError: the core is too old or too new; the message says which package to upgrade.
    """
    from rpc_backends_core import spi

    core_version = spi.SPI_VERSION
    if core_version[0] == SPI_VERSION[0] and core_version >= SPI_VERSION:
        return
    wanted, here = (".".join(map(str, version)) for version in (SPI_VERSION, core_version))
    too_new = core_version > SPI_VERSION
    package = "rpc-backends-agents" if too_new else "rpc-backends-core"
    raise spi.SpiVersionError(
        f"rpc-backends-agents was written for version {wanted} of rpc_backends_core.spi, but the "
        f"installed rpc-backends-core has version {here}. Upgrade the "
        f"{'agents' if too_new else 'core'}: pip install --upgrade {package}"
    )
