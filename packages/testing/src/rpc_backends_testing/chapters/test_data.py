"""Data: what is sent arrives unchanged, bit by bit."""

from __future__ import annotations

import itertools
import math
import warnings
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import strategies
from torch.distributed import rpc

from rpc_backends_core import Capability
from rpc_backends_processes import WorkerContext
from rpc_backends_testing.checks import (
    Call,
    asynchronous,
    checking,
    deviate,
    doing,
    expect,
    remote,
    sync,
)
from rpc_backends_testing.comparison import Difference, difference
from rpc_backends_testing.groups import Groups
from rpc_backends_testing.marks import in_group, requirement
from rpc_backends_testing.messages import (
    Message,
    groups_of_messages,
    lists_of_bytes,
    messages,
    sharing,
)
from rpc_backends_testing.time_limits import scaled
from rpc_backends_testing.transports.properties import holds_for

pytestmark = requirement("data")

MIB = 1024 * 1024
#: The timeout in seconds of each of many calls, so that a lost call fails instead of hanging; scaled.
LOST = 5.0

QUANTIZED = ("qint8", "quint8", "qint32")
# Left out with torch 2.13: quint4x2 and quint2x4 (torch's own unpickler misreads their size and crashes),
# and dtypes that torch cannot copy (bits*, int1 ... int7, uint1 ... uint7).
DTYPES = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
    "complex128",
    "complex64",
    "complex32",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint64",
    "uint32",
    "uint16",
    "uint8",
    "bool",
    *QUANTIZED,
)


def _dtype_parameter(name: str) -> Any:
    why = _why_unusable(name)
    return pytest.param(name, marks=pytest.mark.skipif(why is not None, reason=why or ""))


def _why_unusable(name: str) -> str | None:
    """Return why this torch cannot make and compare tensors of a dtype; None if it can."""
    dtype = getattr(torch, name, None)
    if dtype is None:
        return f"this torch has no {name}"
    if name not in QUANTIZED:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns that complex32 is experimental
                torch.empty(2, 2, dtype=dtype).t().contiguous()
        except RuntimeError:  # some versions lack the kernel for the CPU
            return f"this torch cannot copy {name}"
    return None


every_dtype = pytest.mark.parametrize("dtype", [_dtype_parameter(name) for name in DTYPES])


# --- what is sent --------------------------------------------------------------------------------


def _filled(name: str, *shape: int) -> torch.Tensor:
    """Return a tensor of random bits; its last elements are a NaN with a payload, -0.0, and all ones."""
    dtype = getattr(torch, name)
    random = torch.Generator().manual_seed(20)
    if name in QUANTIZED:
        values = torch.rand(shape, generator=random) * 100 - 50
        return torch.quantize_per_tensor(values, 0.5, 0 if name == "qint32" else 3, dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=random).bool()
    size = torch.empty(0, dtype=dtype).element_size()
    bits = torch.randint(
        0, 256, (math.prod(shape), size), generator=random, dtype=torch.uint8
    )  # little endian: the sign is in the last byte of an element
    bits[-3, -2:] = torch.tensor([0xF1, 0x7F], dtype=torch.uint8)[-size:]
    bits[-2] = 0
    bits[-2, -1] = 0x80
    bits[-1] = 0xFF
    return bits.view(-1).view(dtype).view(shape)


def samples(name: str) -> dict[str, torch.Tensor]:
    """Return tensors of a dtype with each kind of strides, the same in every process."""
    plain = _filled(name, 6, 5)
    tensors = {
        "contiguous": plain,
        "zero-dim": plain[5, 2],
        "transposed": plain.t(),
        "sliced": plain[1:6:2, 1:],
        "expanded": plain[:, 2:3].expand(6, 4),
    }
    # Torch's own unpickler crashes on a quantized tensor without elements.
    return (
        tensors
        if name in QUANTIZED
        else {**tensors, "empty": plain[:0], "no columns": plain[:, :0]}
    )


def pattern(size: int) -> torch.Tensor:
    """Return ``size`` bytes without repetition."""
    numbers = torch.arange((size + 3) // 4, dtype=torch.int32).mul_(-1640531535)
    return numbers.view(torch.uint8)[:size]


# --- functions that are called -------------------------------------------------------------------


def echo(value: Any) -> Any:
    return value


def difference_here(of: Callable[..., Any], args: tuple[Any, ...], value: Any) -> Difference | None:
    """Return how the received ``value`` differs from what ``of(*args)`` makes."""
    return difference(of(*args), value)


def write_to_first(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    tensors[0].fill_(7)
    return tensors


def write(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.fill_(7)


def strides(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.stride())


_kept: list[Any] = []


def keep(value: Any) -> None:
    _kept[:] = [value]


def kept() -> Any:
    return _kept[0]


# --- checks --------------------------------------------------------------------------------------


def expect_to_arrive(of: Callable[..., Any], *args: Any) -> None:
    """Send what ``of(*args)`` makes to worker 1 and back, and check it at both ends."""
    value = of(*args)
    arrived = sync("worker1", difference_here, args=(of, args, value))
    difference = expect(arrived).returns()
    if difference is not None:
        raise deviate(f"{arrived.text}, seen by the callee", difference.expected, difference.got)
    expect(sync("worker1", echo, args=(value,))).gives(value)


class Point(NamedTuple):
    left: torch.Tensor
    right: int


@dataclass
class Record:
    name: str
    tensor: torch.Tensor
    more: list[Any]


def containers() -> dict[str, Any]:
    matrix, two = torch.arange(6.0).view(2, 3), torch.arange(4)
    return {
        "tuple": (matrix, 1, (two, ())),
        "list": [matrix, [two, []], None],
        "dict": {"a": matrix, 1: {("b", 2): two}, None: {}},
        "named tuple": Point(matrix, 3),
        "data class": Record("name", two, [matrix, {"deep": [Point(two, 4)]}]),
        "set": {1, "two", (3, 4)},
        "frozen set": frozenset({1.5, None}),
        "ordered dict": OrderedDict([("z", matrix), ("a", two)]),
        "mixed": [{"weights": (matrix, two), "names": ["a", "b"]}, Point(matrix.t(), 5)],
    }


def deep(levels: int) -> Any:
    value: Any = torch.arange(3)
    for level in range(levels):
        value = [value] if level % 2 else {"next": value}
    return value


def scalars() -> list[Any]:
    numbers = [0, -1, 2**63 - 1, -(2**63), 2**64, -(2**200), 10**100]
    floats = [0.0, -0.0, 1e-320, 1.7976931348623157e308, math.inf, -math.inf, math.nan]
    texts = ["", "plain", "zero \0 in it", "äß漢😀", "\ud800 alone"]
    return [
        *numbers,
        *floats,
        *(complex(number, -number) for number in floats),
        *texts,
        b"",
        bytes(range(256)),
        bytearray(b"bytes"),
        None,
        True,
        False,
        ...,
        range(3, 9, 2),
        torch.float16,
        torch.Size([2, 3]),
        torch.device("cpu"),
    ]


# --- dtypes and strides --------------------------------------------------------------------------


@every_dtype
@in_group(2)
def test_dtype(me: WorkerContext, dtype: str) -> None:
    """Tensors of every dtype and with all kinds of strides arrive bit by bit.

    The payload of a NaN and the sign of zero must arrive too. Builtins travel as SCRIPT_CALL:
    TorchScript, not Python, pickles their arguments.
    """
    expect_to_arrive(samples, dtype)
    for tensor in samples(dtype).values():
        expect(sync("worker1", torch.detach, args=(tensor,))).gives(tensor)


@in_group(2)
def test_channels_last(me: WorkerContext) -> None:
    """A tensor keeps its memory format."""
    image = torch.arange(120.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last)
    expect(sync("worker1", echo, args=(image,))).gives(image)
    expect(sync("worker1", strides, args=(image,))).gives(image.stride())


def _lazy_views() -> dict[str, torch.Tensor]:
    def numbers() -> torch.Tensor:
        return torch.view_as_complex(torch.arange(1.0, 13.0).view(3, 2, 2))

    # Each has its own storage: torch's own unpickler crashes on two views of one storage whose elements
    # differ in size, with every backend.
    return {
        "conjugated": numbers().conj(),
        "negated": numbers().conj().imag,
        "conjugated and transposed": numbers().conj().t(),
        "real part": numbers().real,
    }


@in_group(2)
def test_conjugated_and_negated_views(me: WorkerContext) -> None:
    """Lazily conjugated and negated views keep their values."""
    expect_to_arrive(_lazy_views)
    for tensor in _lazy_views().values():
        expect(sync("worker1", torch.clone, args=(tensor,))).gives(tensor)


def _coo(values: list[float]) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0, 0, 2], [1, 1, 3]]), values, (4, 5))


@in_group(2)
def test_sparse_coo(me: WorkerContext) -> None:
    """A sparse COO tensor keeps its indices and values, duplicates included."""
    expect_to_arrive(_coo, [1.5, -0.0, 2.5])
    expect(sync("worker1", torch.clone, args=(_coo([1, 2, 3]),))).gives(_coo([1, 2, 3]))
    expect_to_arrive(torch.sparse_coo_tensor, (2, 3))


def _coalesced() -> torch.Tensor:
    return _coo([1.5, 2.5, 3.5]).coalesce()


@requirement("data", capability=Capability.SPARSE_LAYOUTS)
@in_group(2)
def test_sparse_coo_coalesced(me: WorkerContext) -> None:
    """A coalesced sparse COO tensor arrives as coalesced."""
    expect_to_arrive(_coalesced)


def _compressed(layout: str) -> torch.Tensor:
    dense = torch.zeros(4, 6)
    dense[0, 1], dense[3, 4], dense[2, 2] = 1.5, -2.5, math.inf
    block = (2, 2) if layout in ("sparse_bsr", "sparse_bsc") else None
    return dense.to_sparse(layout=getattr(torch, layout), blocksize=block)


@requirement("data", capability=Capability.SPARSE_LAYOUTS)
@pytest.mark.parametrize("layout", ["sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"])
@in_group(2)
def test_sparse_compressed(me: WorkerContext, layout: str) -> None:
    """A compressed sparse tensor keeps its layout, indices and values."""
    expect_to_arrive(_compressed, layout)


@in_group(2)
def test_requires_grad(me: WorkerContext) -> None:
    """A tensor keeps its `requires_grad`."""
    for required in (True, False):
        leaf = torch.arange(3.0).requires_grad_(required)
        expect(sync("worker1", echo, args=([leaf],))).gives([leaf])


def _parameters() -> list[torch.nn.Parameter]:
    fixed = torch.nn.Parameter(torch.arange(3), requires_grad=False)
    return [torch.nn.Parameter(torch.arange(6.0).view(2, 3).t()), fixed]


@in_group(2)
def test_parameter(me: WorkerContext) -> None:
    """An `nn.Parameter` arrives as an `nn.Parameter`."""
    expect_to_arrive(_parameters)


# --- storages ------------------------------------------------------------------------------------


def _write_there(tensors: list[torch.Tensor]) -> Call:
    return sync("worker1", write_to_first, args=(tensors,))


@in_group(2)
def test_shared_storage(me: WorkerContext) -> None:
    """Views of one storage in one message share memory at the receiver, and when they have come back.

    Send each storage once. At the receiver, all tensors that used it must share it again.
    """
    whole = torch.zeros(12)
    views = [whole[2:10], whole, whole[:4], whole.view(3, 4).t()]
    written = torch.zeros(12)
    written[2:10] = 7
    want = [written[2:10], written, written[:4], written.view(3, 4).t()]
    back = expect(_write_there(views)).returns()
    call = "write to the first of four views of one storage, on the callee"
    expect(doing(call, lambda: back)).gives(want)
    expect(doing("the storage that was sent, here", lambda: whole)).gives(torch.zeros(12))
    back[0].fill_(3)
    want[0].fill_(3)
    expect(doing("write to the first of the views that came back", lambda: back)).gives(want)


@in_group(2)
def test_one_tensor_twice(me: WorkerContext) -> None:
    """If a message has one tensor twice, both copies share memory at the receiver."""
    tensor = torch.zeros(3)
    sevens = torch.full((3,), 7.0)
    expect(_write_there([tensor, tensor, torch.zeros(3)])).gives([sevens, sevens, torch.zeros(3)])


@in_group(2)
def test_separate_storages(me: WorkerContext) -> None:
    """Equal tensors with separate storages stay separate."""
    tensors = [torch.zeros(3) for _ in range(3)]
    want = [torch.full((3,), 7.0), torch.zeros(3), torch.zeros(3)]
    expect(_write_there(tensors)).gives(want)


@in_group(2)
def test_written_to_by_the_receiver(me: WorkerContext) -> None:
    """The receiver may write to a tensor without changing the sender's tensor.

    Received memory must belong to the tensor. It must not be read-only, nor a buffer that the transport
    reuses.
    """
    tensor = torch.zeros(1000)
    result = expect(sync("worker1", write, args=(tensor,))).returns()
    expect(doing("the tensor that the callee has written to", lambda: result)).gives(
        torch.full((1000,), 7.0)
    )
    expect(doing("the sender's own tensor", lambda: tensor)).gives(torch.zeros(1000))
    expect(doing("writing to a result", lambda: write(result.zero_()))).gives(
        torch.full((1000,), 7.0)
    )


@pytest.mark.parametrize("size", [64, 4 * MIB], ids=["small", "large"])
@in_group(2)
def test_changed_by_the_sender(me: WorkerContext, size: int) -> None:
    """The sender may change its tensor after the call without changing the received one.

    The callee may keep the tensor for long. It must be a copy, and not share the sender's memory.
    """
    tensor = pattern(size)
    expect(sync("worker1", keep, args=(tensor,))).gives(None)
    tensor.zero_()
    expect(sync("worker1", kept)).gives(pattern(size))


@in_group(2)
def test_freed_by_the_sender(me: WorkerContext) -> None:
    """The sender may free a tensor while it is on its way."""
    size = 4 * MIB
    futures = [rpc.rpc_async("worker1", echo, args=(pattern(size),)) for _ in range(4)]
    others = [torch.zeros(size, dtype=torch.uint8) for _ in range(4)]
    for future in futures:
        call = "rpc_async('worker1', echo, args=(<a tensor without references>,)).wait()"
        expect(doing(call, future.wait)).gives(pattern(size))
    expect(doing("memory taken meanwhile", lambda: sum(int(o.sum()) for o in others))).gives(0)


def _small_view() -> torch.Tensor:
    huge = torch.zeros(64 * MIB, dtype=torch.uint8)
    huge[1000:1016] = torch.arange(16, dtype=torch.uint8)
    return huge[1000:1016]


@in_group(2)
def test_small_view_of_a_huge_storage(me: WorkerContext) -> None:
    """A small view of a huge storage arrives unchanged.

    It is best not to send the rest of the storage, which is 64 MiB here.
    """
    expect_to_arrive(_small_view)


@in_group(2)
def test_several_messages_keep_apart(me: WorkerContext) -> None:
    """Results of calls in flight at the same time do not mix."""
    sizes = [1000 * (1 + index % 7) for index in range(40)]
    futures = [rpc.rpc_async("worker1", echo, args=(torch.full((n,), n),)) for n in sizes]
    for size, future in zip(sizes, futures, strict=True):
        call = f"rpc_async('worker1', echo, args=(<{size} times {size}>,)).wait(), among 40"
        expect(doing(call, future.wait)).gives(torch.full((size,), size))


# --- sizes ---------------------------------------------------------------------------------------

SMALL = (0, 1, 7, 64, 4096 - 1, 64 * 1024 + 1)
LARGE = {"1MiB+3": MIB + 3, "16MiB": 16 * MIB}


def _expect_size(size: int) -> None:
    tensor = pattern(size)
    expect_to_arrive(pattern, size)
    expect(asynchronous("worker1", torch.detach, args=(tensor,))).gives(tensor)
    expect(remote("worker1", echo, args=(tensor,))).gives(tensor)


@in_group(2)
def test_small_sizes(me: WorkerContext) -> None:
    """Python functions and builtins take and return tensors of 0 bytes to 64 KiB."""
    for size in SMALL:
        _expect_size(size)


@pytest.mark.parametrize("size", LARGE)
@in_group(2)
def test_large_size(me: WorkerContext, size: str) -> None:
    """Python functions and builtins take and return large tensors."""
    _expect_size(LARGE[size])


@in_group(2, seconds=120)
def test_256_mib(me: WorkerContext) -> None:
    """A tensor of 256 MiB arrives and comes back.

    Lengths need 64 bits. One write to a socket may take only a part.
    """
    tensor = pattern(256 * MIB)
    expect(sync("worker1", echo, args=(tensor,))).gives(tensor)


@in_group(2)
def test_bytes(me: WorkerContext) -> None:
    """`bytes` of up to 16 MiB arrive. They are in the pickled part of a message."""
    for size in (*SMALL, *LARGE.values()):
        data = pattern(size).numpy().tobytes()
        expect(sync("worker1", echo, args=(data,))).satisfies(
            f"the same {len(data)} bytes", data.__eq__
        )


def numbered(count: int) -> list[torch.Tensor]:
    return [torch.full((index % 5,), index) for index in range(count)]


@in_group(2)
def test_many_tensors(me: WorkerContext) -> None:
    """One message can have 500 tensors."""
    expect_to_arrive(numbered, 500)


@in_group(2)
def test_builtin_with_lists(me: WorkerContext) -> None:
    """Builtins take lists of tensors and return them."""
    parts = [torch.arange(4.0), torch.arange(3.0), torch.empty(0)]
    expect(sync("worker1", torch.cat, args=(parts,))).gives(torch.cat(parts))
    joined = torch.cat(parts)
    expect(sync("worker1", torch.split, args=(joined, 3))).gives(list(torch.split(joined, 3)))


@checking
def exchange(me: WorkerContext, rounds: int, size: int) -> None:
    """Send large tensors to the other worker, which sends some too."""
    peer = f"worker{1 - me.index}"
    tensors = [pattern(size).add_(turn) for turn in range(rounds)]
    futures = [rpc.rpc_async(peer, echo, args=(tensor,)) for tensor in tensors]
    for tensor, future in zip(tensors, futures, strict=True):
        call = f"rpc_async({peer!r}, echo, args=(<{size} bytes>,)).wait(), both ways at once"
        expect(doing(call, future.wait)).gives(tensor)


def test_large_both_ways(rpc_groups: Groups) -> None:
    """Large tensors travel in both directions at once.

    A worker must go on receiving while it sends. Otherwise two workers that send to each other wait for
    each other for ever.
    """
    with rpc_groups.running(2) as workers:
        workers.run(exchange, 4, 8 * MIB)


# --- any messages --------------------------------------------------------------------------------


def receive(message: Message, value: Any) -> tuple[Difference | None, list[Any], Any]:
    """Return how ``value`` differs from ``message``, how its tensors share memory, and ``value``."""
    return difference(message.build(), value), _places(message, value), value


def _places(message: Message, value: Any) -> list[Any]:
    """Return how the tensors of ``value`` share memory; if it is not ``message``, an empty list."""
    if difference(message.build(), value) is not None:
        return []
    return sharing(value, message.keeps_sharing())


def _ask(way: str, message: Message, value: Any) -> Any:
    """Call :func:`receive` on worker 1 in one of three ways, each with a timeout."""
    args = (message, value)
    if way == "rpc_sync":
        return rpc.rpc_sync("worker1", receive, args=args, timeout=scaled(LOST))
    if way == "rpc_async":
        return rpc.rpc_async("worker1", receive, args=args, timeout=scaled(LOST)).wait()
    seconds = scaled(LOST)
    return rpc.remote("worker1", receive, args=args, timeout=seconds).to_here(timeout=seconds)


def _expect_message(message: Message, way: str) -> None:
    """Send a message to worker 1 and back, and check it at both ends."""
    value = message.build()
    text = f"{way} to a function with the argument {message}"
    difference, shared, back = expect(doing(text, lambda: _ask(way, message, value))).returns()
    if difference is not None:
        raise deviate(f"{text}, seen by the callee", difference.expected, difference.got)
    shares = "; for each tensor, its storage and its distance from the first tensor in that storage"
    expect(doing(f"{text}{shares}, at the callee", lambda: shared)).gives(message.sharing())
    expect(doing(f"{text}, which returns it", lambda: back)).gives(value)
    found_back = _places(message, back)
    expect(doing(f"{text}{shares}, here", lambda: found_back)).gives(message.sharing())


@in_group(2, seconds=60)
def test_any_message(me: WorkerContext) -> None:
    """A message arrives unchanged, whatever the sizes, views, nesting and order of its tensors.

    The failing message that is shown is the smallest that was found. Look at the order of parts, at sizes
    at which a storage becomes a part of its own, and at views that share a storage.
    """
    ways = strategies.sampled_from(["rpc_sync", "rpc_async", "remote"])
    examples = strategies.tuples(messages(), ways)
    holds_for(lambda example: _expect_message(*example), examples, examples=60)


def _expect_all(group: list[Message]) -> None:
    """Send messages at the same time, from several threads, and check each at both ends."""
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(_expect_message, group, itertools.repeat("rpc_sync")))


@in_group(2, seconds=60)
def test_any_messages_at_once(me: WorkerContext) -> None:
    """Messages of any sizes that are under way at the same time arrive unchanged."""
    holds_for(_expect_all, groups_of_messages(), examples=25)


def _expect_joined(message: Message) -> None:
    tensors = message.build()
    text = f"rpc_sync('worker1', torch.cat, args=({message},))"
    call = sync("worker1", torch.cat, args=(tensors,), timeout=scaled(LOST))
    expect(doing(text, call.run)).gives(torch.cat(tensors))


@in_group(2, seconds=60)
def test_any_tensors_of_a_builtin(me: WorkerContext) -> None:
    """A builtin gets any list of tensors in its order.

    Builtins travel as SCRIPT_CALL: TorchScript pickles their arguments.
    """
    holds_for(_expect_joined, lists_of_bytes(), examples=40)


# --- other values --------------------------------------------------------------------------------


@in_group(2)
def test_scalars(me: WorkerContext) -> None:
    """Python's numbers, strings, bytes and constants arrive unchanged."""
    expect_to_arrive(scalars)


@in_group(2)
def test_scalars_of_builtin(me: WorkerContext) -> None:
    """Builtins take numbers and strings, and return numbers."""
    ones = torch.ones(2)
    for number in (2**53 + 1, -3, 2.5, math.inf, True):
        expect(sync("worker1", torch.mul, args=(ones, number))).gives(ones * number)
    expect(sync("worker1", torch.numel, args=(ones,))).gives(2)
    expect(sync("worker1", torch.is_floating_point, args=(ones,))).gives(True)
    expect(sync("worker1", torch.div, args=(ones, 3), kwargs={"rounding_mode": "floor"})).gives(
        torch.zeros(2)
    )


@in_group(2)
def test_containers(me: WorkerContext) -> None:
    """Containers keep their types, their order and their tensors."""
    expect_to_arrive(containers)


@in_group(2)
def test_deeply_nested(me: WorkerContext) -> None:
    """A tensor a hundred containers deep arrives."""
    expect_to_arrive(deep, 100)
