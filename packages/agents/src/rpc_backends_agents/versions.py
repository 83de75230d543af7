"""Checks that the installed core and the installed torch are those that the agents need."""

from __future__ import annotations

#: The version of ``rpc_backends_core.spi`` that the agents were written for.
SPI_VERSION = (1, 1)


def check_core() -> None:
    """Check the version of the core's interface.

    :raises SpiVersionError: the core is too old or too new; the message says which package to upgrade.
    """
    from rpc_backends_core import spi

    found = spi.SPI_VERSION
    if found[0] == SPI_VERSION[0] and found >= SPI_VERSION:
        return
    wanted, here = (".".join(map(str, version)) for version in (SPI_VERSION, found))
    too_new = found > SPI_VERSION
    package = "rpc-backends-agents" if too_new else "rpc-backends-core"
    raise spi.SpiVersionError(
        f"rpc-backends-agents was written for version {wanted} of rpc_backends_core.spi, but the "
        f"installed rpc-backends-core has version {here}. Upgrade the "
        f"{'agents' if too_new else 'core'}: pip install --upgrade {package}"
    )


def check_torch() -> None:
    """Check that the agents were compiled for the minor version of torch that is installed.

    With another version, symbols are missing, or the layouts of torch's classes differ.

    :raises ImportError: they were compiled for another version; the message has the command that helps.
    """
    import torch

    from rpc_backends_agents._native_transport import BUILT_FOR_TORCH

    if torch.__version__.split(".")[:2] == BUILT_FOR_TORCH.split("."):
        return
    raise ImportError(
        f"rpc-backends-agents was compiled for torch {BUILT_FOR_TORCH}, and torch {torch.__version__} is "
        "installed. Compile it for this torch: pip install --force-reinstall --no-deps "
        "--no-build-isolation --no-binary rpc-backends-agents rpc-backends-agents"
    )
