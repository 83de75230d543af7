"""Print, as CMake's code, where this environment has the headers and libraries that our C++ needs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths, library_paths


def main() -> None:
    """Print a list of `set(NAME "VALUE")`."""
    ucx = find_spec("libucx")
    facts = {
        "TORCH_VERSION": ".".join(torch.__version__.split(".")[:2]),
        "TORCH_ABI": str(int(torch.compiled_with_cxx11_abi())),
        "TORCH_INCLUDE": ";".join(include_paths()),
        "TORCH_LIBRARIES": library_paths()[0],
        "UCX_FOLDER": str(Path(ucx.origin).parent) if ucx and ucx.origin else "",
    }
    for name, value in facts.items():
        print(f'set({name} "{value}")')


if __name__ == "__main__":
    main()
