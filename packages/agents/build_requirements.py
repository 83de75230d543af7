"""The requirements of rpc-backends-agents, which the build reads.

A wheel has other ones than the sources: it needs the minor version of torch that it was compiled for.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

CORE = "rpc-backends-core>=0.1.0"
SUPPORTED = "torch>=2.6,<2.16"


class Requirements:
    """A provider of metadata for scikit-build-core."""

    _state = "wheel"

    def build_state(self, state: str) -> None:
        """Note whether an sdist or a wheel is built."""
        self._state = state

    def dynamic_metadata(
        self, settings: Mapping[str, Any], project: Mapping[str, Any]
    ) -> dict[str, list[str]]:
        """Return the requirements.

        :raises SystemExit: torch, which a wheel is compiled for, is not installed.
        """
        return {"dependencies": [CORE, SUPPORTED if self._state == "sdist" else _installed_torch()]}

    def dynamic_wheel(self, settings: Mapping[str, Any]) -> dict[str, bool]:
        """Say that a wheel has other requirements than the sdist."""
        return {"dependencies": True}


def _installed_torch() -> str:
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise SystemExit(
            "error: torch is not installed here, and this package is compiled against torch. Install "
            "torch, and then this package with `pip install --no-build-isolation`."
        ) from None
    return f"torch=={'.'.join(version.split('.')[:2])}.*"
