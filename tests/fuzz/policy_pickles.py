"""Write pickles of calls and results of every kind, made by torch, as seeds for `policy`: FOLDER."""

from __future__ import annotations

import collections
import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed import rpc


class Model:
    """A class whose objects are arguments, and whose methods are called through RRefs."""

    def __init__(self) -> None:
        self.rate = 0.5

    def forward(self, value: Any) -> Any:
        """Return the argument."""
        return value

    @staticmethod
    def fixed() -> int:
        """Return a number."""
        return 1


def step(value: Any = None) -> Any:
    """Return the argument; the policy of `policy` lists this function."""
    return value


def values() -> list[Any]:
    """Return values of the kinds that arguments and results have."""
    tensor = torch.ones(2)
    rref = rpc.RRef(tensor)  # type: ignore[no-untyped-call]
    return [
        None,
        True,
        -70000,
        2**70,
        2.5,
        1j,
        "a text",
        "a longer text, é " * 20,
        b"bytes",
        bytearray(b"bytes"),
        (1, "a", (2,), ()),
        [1, [2, [3]], tensor],
        {"a": tensor, 1: {2.5: None}},
        {1, "a"},
        frozenset({2.5, "b"}),
        collections.OrderedDict(a=1),
        slice(1, 2),
        tensor,
        [tensor, tensor, torch.zeros(1)],
        torch.nn.Parameter(tensor),
        torch.float16,
        torch.device("cpu"),
        tensor.size(),
        rref,
        [rref, {"x": rref}],
        Model(),
        [Model(), Model()],
        step,
        Model,
        ValueError("wrong"),
        range(3),
    ]


def calls(given: list[Any]) -> list[Any]:
    """Return calls as torch sends them."""
    udf = rpc.internal.PythonUDF
    rref = rpc.RRef(Model())  # type: ignore[no-untyped-call]
    made = [udf(step, (value,), {}) for value in given]
    made += [udf(step, (), {"value": value}) for value in given[:12]]
    proxies = rpc.rref_proxy
    made += [
        udf(step, (), {}),
        udf(Model, (), {}),
        udf(Model.fixed, (), {}),
        udf(torch.add, (torch.ones(1), 1), {}),
        udf(torch.nn.functional.relu, (torch.ones(1),), {}),
        udf(print, ("a",), {}),
        udf(proxies._local_invoke, (rref, "forward", (1,), {"value": torch.ones(1)}), {}),
        udf(proxies._local_invoke_async_execution, (rref, "forward", (1,), {}), {}),
        udf(rpc.api._rref_typeof_on_owner, (rref,), {}),
        udf(rpc.api._gather_to_leader, ("ab1", "a", {"x": 1}, {"a", "b"}), {}),
        udf(rpc.api._broadcast_to_followers, ("ab1", {"a": 1, "b": None}), {}),
    ]
    return made


def main() -> None:
    """Write a file for each pickle."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for thing in (Model, step):  # the names in the policy
        thing.__module__ = "train"
    train: Any = type(sys)("train")
    train.Model, train.step = Model, step
    sys.modules["train"] = train
    options = rpc.TensorPipeRpcBackendOptions(init_method="tcp://127.0.0.1:0")
    rpc.init_rpc("worker0", rank=0, world_size=1, rpc_backend_options=options)
    given = values()
    errors = [
        rpc.internal.RemoteException(f"wrong {n}", kind)
        for n, kind in enumerate((ValueError, Model))
    ]
    for number, value in enumerate([*calls(given), *given, *errors]):
        pickle, _ = rpc.internal.serialize(value)
        (folder / f"pickle{number}").write_bytes(pickle)
    rpc.shutdown(graceful=False)


if __name__ == "__main__":
    main()
