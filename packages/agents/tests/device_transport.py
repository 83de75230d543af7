"""The transport of the tests that moves device memory; see device_transport.cpp."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import torch

import rpc_backends_agents


def build(folder: Path) -> Path:
    """Compile the transport as C++17 against transport.h only; return the library."""
    library = folder / "device_transport.so"
    source = Path(__file__).with_suffix(".cpp")
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread", abi]
    include = f"-I{rpc_backends_agents.include_dir()}"
    subprocess.run(["c++", *flags, include, str(source), "-o", str(library)], check=True)
    return library


class DeviceTransport:
    """A transport that moves the memory of the accelerator ``late``."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.device_transport_new.restype = ctypes.c_void_p
        self._library.device_transport_capsule_name.restype = ctypes.c_char_p
        self._handle = ctypes.c_void_p(self._library.device_transport_new())
        self._name = ctypes.c_char_p(self._library.device_transport_capsule_name())

    def __rpc_transport__(self) -> object:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = (
            ctypes.py_object,
            [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
        )
        return new(self._handle, self._name, None)

    def forge(self) -> None:
        """Put received device memory where the agent's allocator did not say."""
        self._library.device_transport_forge(self._handle, 1)
