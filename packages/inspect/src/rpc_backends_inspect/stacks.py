"""What the threads of a worker do, by the stacks that faulthandler writes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath

from rpc_backends_processes import stacks

_HOLDER = re.compile(r"^GIL 0x0*([0-9a-f]+)$", re.MULTILINE)
_RPC = "torch/distributed/rpc/"
#: The package whose functions stand in front of torch's ``rpc_sync``, ``rpc_async`` and ``remote``.
_CORE = "/rpc_backends_core/"
#: The files of the functions that call methods of RRefs, and functions with ``async_execution``.
_WRAPPERS = (f"{_RPC}rref_proxy.py", f"{_RPC}functions.py")
#: The start of the name of the code that torch generates for a RemoteModule.
_REMOTE_MODULE = "<_remote_module_"
#: Torch's function that runs a function for another worker.
_RUNS_A_CALL = "_run_function"


@dataclass(frozen=True)
class Frame:
    """One frame of a Python stack."""

    file: str
    line: int
    function: str

    @property
    def is_torchs(self) -> bool:
        """Whether the frame is in torch's code."""
        return "/torch/" in self.file

    @property
    def is_rpc(self) -> bool:
        """Whether the frame is in ``torch.distributed.rpc``."""
        return _RPC in self.file

    @property
    def is_wrapper(self) -> bool:
        """Whether this is a function of torch that calls a function or a method for a caller."""
        return self.file.endswith(_WRAPPERS) or self.file.startswith(_REMOTE_MODULE)

    def __str__(self) -> str:
        return f"{self.function} ({PurePath(self.file).name}:{self.line})"


@dataclass(frozen=True)
class Thread:
    """A thread that runs Python.

    :ivar number: the number that ``threading.get_ident`` returns on this thread.
    :ivar frames: the innermost first.
    """

    number: int
    frames: tuple[Frame, ...]

    @cached_property
    def serves(self) -> Frame | None:
        """The frame of the function that this thread runs for another worker; None if there is none.

        For a call through an RRef or a RemoteModule, this is the method: torch calls it from functions of
        its own. If none of the program's functions runs yet, it is torch's function.
        """
        for at, frame in enumerate(self.frames):
            if frame.function == _RUNS_A_CALL and frame.is_rpc:
                inner = [*reversed(self.frames[:at])]
                called = (frame for frame in inner if not frame.is_wrapper)
                return next(called, inner[0] if inner else None)
        return None

    @property
    def position(self) -> Frame | None:
        """The innermost frame outside torch, the core and the standard library; None if there is none."""
        return next((frame for frame in self.frames if _is_of_the_program(frame)), None)


def parse(text: str) -> list[Thread]:
    """Parse the output of faulthandler."""
    return [
        Thread(number, tuple(Frame(*place) for place in places))
        for number, places in stacks.parse(text)
    ]


def gil_holder(text: str) -> int:
    """Return the number of the thread that holds the GIL, as the recorder wrote it; 0 if none does."""
    match = _HOLDER.search(text)
    return int(match[1], 16) if match else 0


def _is_of_the_program(frame: Frame) -> bool:
    path = PurePath(frame.file)
    if frame.is_torchs or _CORE in frame.file or frame.file.startswith("<"):
        return False
    # The standard library is in .../lib/python3.11, packages in its site-packages.
    below = [part for part in path.parts if part.startswith("python3")]
    return not below or "site-packages" in path.parts
