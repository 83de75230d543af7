"""The names that every policy permits: plain values, tensors, RRefs, and what torch itself calls."""

from __future__ import annotations

import builtins
from collections import OrderedDict
from typing import Any

import torch

from rpc_backends_core.spi import torch_internals

#: The module of torch's classes for calls.
INTERNAL = torch_internals.PICKLED_FROM
#: Torch's functions that call a method through an RRef: (RRef, method, arguments, keywords).
INVOKES = frozenset(
    f"{torch_internals.CALLS_OF_METHODS}:{name}"
    for name in ("_local_invoke", "_local_invoke_async_execution")
)
#: Torch's function that asks for the class of an RRef's value, before the first call of a method.
TYPE_OF = "torch.distributed.rpc.api:_rref_typeof_on_owner"
#: Torch's functions that gather from all workers, as a graceful shutdown does.
GATHERS = "torch.distributed.rpc.api:_gather_to_leader"
BROADCASTS = "torch.distributed.rpc.api:_broadcast_to_followers"
#: The functions of RemoteModule that call `forward` of an RRef's value. Their module is made by torch.
FORWARDS = "_remote_module_non_scriptable:_remote_forward"
#: How torch's functions are pickled, which are static methods of a class without a module.
_OF_TORCH = f"{torch_internals.FUNCTIONS_OF_TORCH}."
#: The classes of calls and exceptions, which no policy can permit as values.
NEVER_PASSED = frozenset(f"{INTERNAL}:{kind}" for kind in torch_internals.pickled_classes())
#: The words of the types of RRefs that no class of a program has a part in.
RREF_TYPES = frozenset(
    [
        "PyObject",
        "Tensor",
        "int",
        "float",
        "bool",
        "str",
        "complex",
        "List",
        "Dict",
        "Tuple",
        "Optional",
        "Future",
        "RRef",
        "Device",
        "NoneType",
    ]
)


def canonical(name: str) -> str:
    """Return a name as a policy writes it."""
    return f"torch:{name.removeprefix(_OF_TORCH)}" if name.startswith(_OF_TORCH) else name


def _plain_bytearray(content: bytes = b"", /) -> bytearray:
    """Make a bytearray of bytes, and never one of a size."""
    if type(content) is not bytes:
        raise TypeError("a pickled bytearray consists of bytes")
    return bytearray(content)


def _plain_size(sizes: Any = (), /) -> torch.Size:
    """Make a size of numbers that are there, and never of a range of them."""
    if type(sizes) is not tuple:
        raise TypeError("a pickled torch.Size consists of a tuple")
    return torch.Size(sizes)


def _plain_ordered_dict() -> OrderedDict[Any, Any]:
    """Make an empty dict; its items follow in the pickle, where the check of keys sees them."""
    return OrderedDict()


def _plain_parameter(data: Any, requires_grad: Any, hooks: Any, /) -> Any:
    """Make an ``nn.Parameter`` without hooks, which C++ reads unchecked in a backward pass."""
    is_plain = type(data) is torch.Tensor and type(requires_grad) is bool
    if not is_plain or type(hooks) is not OrderedDict or hooks:
        raise TypeError("a pickled parameter consists of a tensor, a bool and no hooks")
    # A dict of its own, because the pickle may fill the other one later.
    return torch_internals.rebuild_parameter()(data, requires_grad, OrderedDict())


def constants() -> dict[str, Any]:
    """Return the immutable values that a pickle may name."""
    kinds = (torch.dtype, torch.layout, torch.memory_format, torch.qscheme)
    of_torch = {
        f"torch:{name}": value for name, value in vars(torch).items() if isinstance(value, kinds)
    }
    own = {"builtins:Ellipsis": Ellipsis, "builtins:NotImplemented": NotImplemented}
    return {**of_torch, **own}


def exceptions() -> dict[str, type[Exception]]:
    """Return Python's own exceptions, without those that end a process, and without groups.

    A group copies the sequence that it gets, which may be much longer than its pickle.
    """
    return {
        f"builtins:{name}": value
        for name, value in vars(builtins).items()
        if isinstance(value, type)
        and issubclass(value, Exception)
        and not issubclass(value, BaseExceptionGroup)
    }


def plain_types() -> dict[str, Any]:
    """Return the classes and functions that a pickle may call, with any arguments.

    No ``range``: whatever copies one takes memory that its sender chooses.
    """
    plain = {f"builtins:{kind.__name__}": kind for kind in (complex, slice)}
    return {
        **plain,
        "builtins:bytearray": _plain_bytearray,
        "collections:OrderedDict": _plain_ordered_dict,
        "torch:device": torch.device,
        "torch:Size": _plain_size,
        "torch._utils:_rebuild_parameter": _plain_parameter,
        **exceptions(),
    }
