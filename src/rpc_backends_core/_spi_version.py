"""The version of the plugin interface (:mod:`rpc_backends_core.spi`), and its check."""

from __future__ import annotations

from rpc_backends_core._errors import SpiVersionError

#: (major, minor). Additions increase the minor number; incompatible changes the major number.
SPI_VERSION = (1, 1)


def check_spi_version(declared: object, distribution: str | None) -> None:
    """Reject a package written for an incompatible version of the interface.

    :param declared: the package's ``spi_version``, or None if it declares none.
    :param distribution: the package's name in pip.
    :raises SpiVersionError: the versions are incompatible; the message says which package to upgrade.
    """
    if declared is None:
        return
    if not (
        isinstance(declared, tuple)
        and len(declared) == len(SPI_VERSION)
        and all(type(number) is int for number in declared)
    ):
        raise SpiVersionError(
            f"spi_version is {declared!r}; it must be a pair of numbers, for example {SPI_VERSION}."
        )
    major, minor = declared
    here = ".".join(map(str, SPI_VERSION))
    wanted = f"{major}.{minor}"
    if major < SPI_VERSION[0]:
        raise SpiVersionError(
            f"it was written for version {wanted} of rpc_backends_core.spi, but the installed "
            f"rpc-backends-core has version {here}. Upgrade the package: "
            f"pip install --upgrade {distribution or 'PACKAGE'}"
        )
    if declared > SPI_VERSION:
        raise SpiVersionError(
            f"it needs version {wanted} of rpc_backends_core.spi, but the installed rpc-backends-core "
            f"has version {here}. Upgrade the core: pip install --upgrade rpc-backends-core"
        )
