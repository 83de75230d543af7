"""The interceptor of the tests, compiled on first use: see recorder.cpp."""

from __future__ import annotations

import ctypes
import subprocess
import time
from pathlib import Path
from typing import Any

import rpc_backends_agents

#: Time limit in seconds for the arrival of a message.
TIME_LIMIT = 30.0


def build(folder: Path) -> Path:
    """Compile the interceptor as C++17 against interceptor.h only; return the library."""
    library = folder / "recorder.so"
    source = Path(__file__).with_suffix(".cpp")
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    include = f"-I{rpc_backends_agents.include_dir()}"
    subprocess.run(["c++", *flags, include, str(source), "-o", str(library)], check=True)
    return library


class Recorder:
    """An interceptor that follows orders and records its events.

    :param orders: for ``outgoing``, ``incoming`` and ``answer``, a verb that says what to do with such a
        message; for ``observe``, anything, to get answers; for ``context``, bytes to attach.
    """

    def __init__(self, library: Path, **orders: str | bytes) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.recorder_new.restype = ctypes.c_void_p
        self._library.recorder_capsule_name.restype = ctypes.c_char_p
        self._library.recorder_events.restype = ctypes.c_size_t
        self._handle = ctypes.c_void_p(self._library.recorder_new())
        self._name = ctypes.c_char_p(self._library.recorder_capsule_name())
        self.order(**orders)

    def __rpc_interceptor__(self) -> object:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = (
            ctypes.py_object,
            [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
        )
        return new(self._handle, self._name, None)

    def order(self, **orders: str | bytes) -> None:
        """Change the orders."""
        for what, how in orders.items():
            text = how.encode() if isinstance(how, str) else how
            self._library.recorder_order(self._handle, what.encode(), text)

    def release(self) -> None:
        """Pass on all held messages."""
        self._library.recorder_release(self._handle)

    def events(self) -> list[str]:
        """Return the events so far."""
        room = ctypes.create_string_buffer(1 << 16)
        size = self._library.recorder_events(self._handle, room, ctypes.c_size_t(1 << 16))
        assert size < 1 << 16
        return room.value.decode().splitlines()

    def wait_for(self, begin: str, times: int = 1) -> list[str]:
        """Wait until ``times`` events start with ``begin``; return these events."""
        until = time.monotonic() + TIME_LIMIT
        while (
            len(matching := [event for event in self.events() if event.startswith(begin)]) < times
        ):
            assert time.monotonic() < until, (begin, self.events())
            time.sleep(0.005)
        return matching


class WrongCapsule:
    """An object whose `__rpc_interceptor__` returns no interceptor."""

    def __rpc_interceptor__(self) -> Any:
        return object()
