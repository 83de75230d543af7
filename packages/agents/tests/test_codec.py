"""Tensors arrive as they were sent, and an invalid frame is refused, counted and logged."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from agents_kit import (
    HEAD,
    a_request,
    change,
    error_of,
    identity,
    in_worker,
    logged,
    on_wire,
    two_agents,
)
from torch.distributed import rpc

MATRIX = torch.arange(24, dtype=torch.float32).view(4, 6)
DTYPES = [
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"),
    *("complex32", "complex64", "complex128"),
]
TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "a number": lambda: torch.tensor(7.5),
    "empty": lambda: torch.empty(0, 3, 0),
    "transposed": MATRIX.t,
    "a column": lambda: MATRIX[:, 2],
    "every second": lambda: MATRIX[:, ::2],
    "from the middle": lambda: MATRIX[1:3],
    "expanded": lambda: torch.ones(1).expand(5, 4),
    "far apart": lambda: torch.arange(100_000)[::5000],
    "large": lambda: torch.arange(100_000),
    "large and misaligned": lambda: torch.arange(100_001, dtype=torch.uint8)[1:],
    "conjugated": lambda: MATRIX.to(torch.complex64).conj(),
    "negative view": lambda: torch._neg_view(MATRIX),
    "requires grad": lambda: torch.ones(3, requires_grad=True),
    "sparse": MATRIX.to_sparse,
    "sparse of expanded values": lambda: torch.sparse_coo_tensor(
        torch.tensor([[0, 2, 2]]), torch.ones(1, 2).expand(3, 2), (4, 2)
    ),
    "hybrid": lambda: MATRIX.to_sparse(1),
    "quantized": lambda: torch.quantize_per_tensor(MATRIX, 0.5, 3, torch.quint8),
    "quantized by channel": lambda: torch.quantize_per_channel(
        MATRIX,
        torch.ones(4, dtype=torch.float64),
        torch.zeros(4, dtype=torch.int64),
        0,
        torch.qint8,
    ),
}


def many_zeros() -> torch.Tensor:
    return torch.zeros(5000)


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.resolve_conj().resolve_neg().contiguous().view(torch.uint8).numpy())


@in_worker
def test_tensors_of_every_dtype_arrive_bit_by_bit(me: Any) -> None:
    with two_agents():
        sent = [torch.arange(1, 7).to(getattr(torch, dtype)).view(2, 3) for dtype in DTYPES]
        returned = rpc.rpc_sync("b", identity, args=(sent,))
        for expected, tensor in zip(sent, returned, strict=True):
            assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape)
            assert bits(tensor) == bits(expected), expected.dtype


@in_worker
@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_arrives_as_it_was_sent(me: Any, name: str) -> None:
    sent = TENSORS[name]()
    with two_agents():
        returned = rpc.rpc_sync("b", identity, args=(sent,))
    assert returned.dtype == sent.dtype
    assert returned.shape == sent.shape
    assert returned.layout == sent.layout
    assert returned.requires_grad == sent.requires_grad
    if sent.is_quantized:
        assert returned.qscheme() == sent.qscheme()
        assert torch.equal(returned.int_repr(), sent.int_repr())
        sent, returned = sent.dequantize(), returned.dequantize()
    if sent.layout == torch.sparse_coo:
        assert returned.is_coalesced() == sent.is_coalesced()
        sent, returned = sent.to_dense(), returned.to_dense()
    assert torch.equal(returned, sent)


@in_worker
@pytest.mark.parametrize("elements", [8, 100_000], ids=["small", "large"])
def test_shared_memory_is_shared_at_the_receiver_only(me: Any, elements: int) -> None:
    base = torch.zeros(elements)
    with two_agents():
        whole, part, again = rpc.rpc_sync(
            "b", identity, args=((base, base[2:4], base.view(2, -1)),)
        )
    part.fill_(1)
    assert whole[1:5].tolist() == [0, 1, 1, 0]
    assert again[0, 1:4].tolist() == [0, 1, 1]
    assert base.sum() == 0


@in_worker
def test_only_the_span_of_a_view_is_sent(me: Any) -> None:
    with on_wire() as (_, wire):
        _, parts = a_request(wire, torch.zeros(1 << 20)[100:110], torch.zeros(1 << 20)[:: 1 << 18])
        assert sum(map(len, parts)) < 2000


@in_worker
def test_a_meta_tensor_is_refused(me: Any) -> None:
    with on_wire() as (_, wire):
        with pytest.raises(Exception, match=r"on meta and has no data; send its shape"):
            rpc.rpc_sync("b", torch.add, args=(torch.empty(2, device="meta"), 1))
        assert not wire.sent


@in_worker
@pytest.mark.parametrize("kind", ["to_mkldnn", "to_sparse_csr"])
def test_a_result_without_a_storage_is_refused(me: Any, kind: str) -> None:
    with two_agents(), pytest.raises(Exception, match=r"result.* cannot be sent: .*\.to_dense\(\)"):
        rpc.rpc_sync("b", convert, args=(torch.ones(4, 4), kind))


def convert(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """Return the tensor in a layout in which torch's RPC cannot return it."""
    converted: torch.Tensor = getattr(tensor, kind)()
    return converted


def resized(nbytes: int) -> torch.Tensor:
    """Return a tensor of 4,000 bytes whose storage was made smaller."""
    tensor = torch.zeros(1000)
    tensor.untyped_storage().resize_(nbytes)
    return tensor


def view_then_resized() -> torch.Tensor:
    view = torch.zeros(1000)[500:600]
    view.untyped_storage().resize_(64)
    return view


def sparse_of(member: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor(
        torch.arange(1000).view(1, -1), member, (1000,), check_invariants=False
    )


def sparse_then_resized() -> torch.Tensor:
    sparse = sparse_of(torch.zeros(1000))
    sparse._values().untyped_storage().resize_(64)
    return sparse


def csr_then_freed() -> torch.Tensor:
    csr = torch.eye(100).to_sparse_csr()
    csr.col_indices().untyped_storage().resize_(0)
    return csr


def bsr_then_resized() -> torch.Tensor:
    bsr = torch.eye(100).to_sparse_bsr((2, 2))
    bsr.values().untyped_storage().resize_(16)
    return bsr


def quantized_then_resized() -> torch.Tensor:
    quantized = torch.quantize_per_tensor(torch.zeros(1000), 0.5, 3, torch.quint8)
    quantized.untyped_storage().resize_(64)
    return quantized


def without_scales() -> torch.Tensor:
    quantized = torch.quantize_per_channel(
        torch.zeros(4, 2), torch.ones(4), torch.zeros(4), 0, torch.qint8
    )
    quantized.q_per_channel_scales().untyped_storage().resize_(0)
    return quantized


def fake() -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.zeros(1000)


def out_of_bounds() -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[7]]), torch.ones(1), (4,), check_invariants=False)


#: Tensors whose memory does not match their sizes, and the errors for them.
WITHOUT_MEMORY: dict[str, tuple[Callable[[], Any], str]] = {
    "resized": (lambda: resized(64), r"shape \[1000\] and dtype Float.*of 64 bytes: it needs 4000"),
    "freed": (lambda: resized(0), "storage of 0 bytes: it needs 4000"),
    "a view of what was resized": (view_then_resized, "of 64 bytes: it needs 2400"),
    "conjugate view": (
        lambda: resized(64).view(torch.complex64).conj(),
        "of 64 bytes: it needs 4000",
    ),
    "negative view": (lambda: torch._neg_view(resized(64)), "of 64 bytes: it needs 4000"),
    "zeros without memory": (lambda: torch._efficientzerotensor((1000,)), r"call .clone\(\)"),
    "sparse": (sparse_then_resized, "its values.*of 64 bytes: it needs 4000"),
    "csr": (csr_then_freed, "its plain indices.*of 0 bytes: it needs"),
    "bsr": (bsr_then_resized, "its values.*of 16 bytes: it needs 800"),
    "quantized": (quantized_then_resized, "of 64 bytes: it needs 1000"),
    "quantized by channel": (without_scales, "its scales.*of 0 bytes: it needs"),
    "indices out of bounds": (out_of_bounds, "it is not a valid sparse tensor"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2)]), "it is a nested tensor"),
    "opaque": (lambda: torch.zeros(4, 4).to_mkldnn(), r"its layout is Mkldnn.*\.to_dense\(\)"),
}


@in_worker
@pytest.mark.parametrize("name", WITHOUT_MEMORY)
def test_a_tensor_without_memory_fails_its_call(me: Any, name: str) -> None:
    make_tensor, why = WITHOUT_MEMORY[name]
    bad = make_tensor()
    with two_agents():
        second = rpc.rpc_async("b", identity, args=(torch.ones(2),))
        for worker in ("b", "a"):
            with pytest.raises(
                Exception, match=f"(?s)tensor (1 )?of the message cannot be sent: .*{why}"
            ):
                rpc.rpc_sync(worker, identity, args=((torch.ones(1), bad),))
        assert second.wait().sum() == 2
        assert rpc.rpc_sync("b", identity, args=(torch.ones(2),)).sum() == 2


@in_worker
def test_a_fake_tensor_fails_its_call(me: Any) -> None:
    with two_agents():
        with pytest.raises(Exception, match=r"cannot be sent|Can.t pickle"):
            rpc.rpc_sync("b", identity, args=(fake(),))
        assert rpc.rpc_sync("b", identity, args=(torch.ones(2),)).sum() == 2


def freed_answer() -> torch.Tensor:
    return resized(0)


@in_worker
def test_an_answer_without_memory_fails_its_call(me: Any) -> None:
    with two_agents():
        for worker in ("b", "a"):
            text = error_of(rpc.rpc_async(worker, freed_answer))
            assert "the answer cannot be sent: tensor 0" in text
        assert rpc.rpc_sync("b", identity, args=(torch.ones(2),)).sum() == 2


@in_worker
@pytest.mark.parametrize("dimensions", [64, 65, 254, 255, 300])
def test_a_tensor_of_many_dimensions_arrives(me: Any, dimensions: int) -> None:
    strided = torch.arange(6.0).view(2, 3, *[1] * (dimensions - 2))
    with two_agents():
        returned = rpc.rpc_sync("b", identity, args=(strided,))
    assert returned.shape == strided.shape
    assert returned.flatten().tolist() == strided.flatten().tolist()


@in_worker
def test_a_tensor_with_too_many_dimensions_fails_its_call(me: Any) -> None:
    with on_wire() as (_, wire):
        with pytest.raises(
            Exception, match=r"it has 65536 dimensions, and at most 65535 are allowed.*reshape"
        ):
            rpc.rpc_sync("b", torch.add, args=(torch.zeros(1).view([1] * 65536), 1))
        assert not wire.sent


@in_worker
def test_a_request_too_large_for_its_receiver_fails_alone(me: Any) -> None:
    with two_agents(others={"max_message_bytes": 10_000}):
        second = rpc.rpc_async("b", identity, args=(torch.ones(2),))
        text = error_of(rpc.rpc_async("b", identity, args=(torch.zeros(5000),)))
        assert "worker 'b' refuses the request: it has" in text
        assert "more than max_message_bytes of the receiving worker, 10000" in text
        assert second.wait().sum() == 2
        assert rpc.rpc_sync("b", identity, args=(torch.ones(2),)).sum() == 2


@in_worker
def test_an_answer_too_large_for_its_receiver_fails_alone(me: Any) -> None:
    with two_agents(max_message_bytes=10_000, others={"max_message_bytes": 1 << 30}):
        second = rpc.rpc_async("b", identity, args=(torch.ones(2),))
        text = error_of(rpc.rpc_async("b", many_zeros))
        assert "RPC to 'b' failed: this worker refuses the answer: it has" in text
        assert second.wait().sum() == 2


@in_worker
def test_a_request_over_the_limit_of_its_sender_fails(me: Any) -> None:
    with on_wire(max_message_bytes=10_000) as (_, wire):
        with pytest.raises(
            Exception, match=r"larger than max_message_bytes \(10000\) of this worker"
        ):
            rpc.rpc_sync("b", torch.add, args=(torch.zeros(5000), 1))
        assert not wire.sent


@in_worker
def test_an_answer_over_the_limit_of_its_sender_fails_the_call(me: Any) -> None:
    with two_agents(max_message_bytes=10_000):
        future = rpc.rpc_async("b", many_zeros)
        assert "the answer cannot be sent: a message of" in error_of(future)
        assert rpc.rpc_sync("b", identity, args=(torch.ones(2),)).sum() == 2


def cut(parts: list[bytes]) -> list[bytes]:
    return [parts[0][:-1], *parts[1:]]


def with_tensor(offset: int, value: bytes) -> Callable[[list[bytes]], list[bytes]]:
    """Change the first tensor's description, which follows those of two storages.

    Its fields are kind, dtype, flags, dimensions, storage, offset, sizes and strides.
    """

    def changed(parts: list[bytes]) -> list[bytes]:
        at = HEAD.size + 2 * 9 + offset
        return [parts[0][:at] + value + parts[0][at + len(value) :], *parts[1:]]

    return changed


# Frames without a valid head.
INVALID_HEADS: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "no parts": (lambda parts: [], "it is empty"),
    "an empty part": (lambda parts: [b""], "it ends in the middle of a field"),
    "half a head": (lambda parts: [parts[0][:30]], "it ends in the middle of a field"),
    "an unknown magic": (
        lambda p: change(p, magic=1),
        "it does not start with the bytes of a frame",
    ),
    "another version": (lambda p: change(p, version=9), "its version is 9.*install the same"),
    "an unknown kind": (lambda p: change(p, kind=3), "its kind 3 is unknown"),
    "unknown flags": (lambda p: change(p, flags=2), "unknown flags"),
}
# Frames with a valid head, which names the call.
INVALID_REQUESTS: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "an unknown type": (lambda p: change(p, type=99), "its message type 99 is unknown"),
    "too much context": (
        lambda p: change(p, context=1089),
        "1089 bytes of context; at most 1088 are",
    ),
    "too many tensors": (
        lambda p: change(p, tensors=1 << 21),
        "2097152 tensors; at most 1048576 are",
    ),
    "too many storages": (lambda p: change(p, storages=9), "9 storages; at most 6 are"),
    "one tensor too many": (
        lambda p: change(p, tensors=lambda n: n + 1),
        "in the middle of a field",
    ),
    "one tensor too few": (lambda p: change(p, tensors=lambda n: n - 1), "longer than they claim"),
    "a long payload": (lambda p: change(p, payload=1 << 60), "it claims to be longer than it is"),
    "a longer payload": (lambda p: change(p, payload=lambda n: n + 9), "."),
    "long descriptions": (lambda p: change(p, descriptions=1 << 60), "longer than it is"),
    "cut short": (cut, "it ends in the middle of a"),
    "longer than announced": (lambda p: [p[0] + b"x", *p[1:]], "it is longer than it claims to be"),
    "a part too many": (lambda p: [*p, b"x"], "it is longer than it claims to be"),
    "a part missing": (lambda p: p[:1], "a part is missing, or its size is wrong"),
    "a part too long": (lambda p: [p[0], p[1] + b"x"], "a part is missing, or its size is wrong"),
    "an unknown kind of tensor": (with_tensor(0, b"\x09"), "kind 9 of a tensor is unknown"),
    "an unknown dtype": (with_tensor(1, b"\xf0"), "unknown dtype 240"),
    "a quantized dtype": (with_tensor(1, b"\x0c"), "quantized dtype but no scale"),
    "unknown flags of a tensor": (with_tensor(2, b"\xff"), "unknown flags"),
    "a conjugated real tensor": (with_tensor(2, b"\x02"), "not complex is conjugated"),
    "more dimensions than sizes": (
        with_tensor(3, b"\xfe"),
        "more dimensions than sizes",
    ),
    "an unknown storage": (with_tensor(4, b"\x07"), "names storage 7 of 2"),
    "a negative offset": (with_tensor(8, b"\xff" * 8), "negative size, stride or offset"),
    "an offset beyond the storage": (with_tensor(8, b"\xff"), "exceeds its storage of"),
    "a size beyond the storage": (with_tensor(16, b"\xff" * 7 + b"\x7f"), "exceeds its storage of"),
    "sizes that overflow": (
        with_tensor(16, b"\xff" * 7 + b"\x7f" + b"\0" * 8),
        "exceeds its storage of",
    ),
}


@in_worker
@pytest.mark.parametrize("name", INVALID_HEADS)
def test_a_frame_without_a_valid_head_closes_its_connection(me: Any, name: str) -> None:
    spoil, why = INVALID_HEADS[name]
    with on_wire() as (agent, wire), logged() as lines:
        _, parts = a_request(wire, torch.ones(3), torch.ones(5000))
        wire.inbox.deliver(1, spoil(parts))
        ((peer, reason),) = wire.wait_until(lambda: wire.rejected)
        assert peer == 1
        assert reason.startswith("an invalid message: ")
        assert re.search(why, reason)
        assert lines == [f"RPC: 'b' has sent {reason}. The connection is closed."]
        assert agent.get_metrics()["agent.bad_frames"] == "1"
        # The next frame is accepted.
        wire.inbox.deliver(1, parts)
        answer = wire.wait_until(lambda: [sent for sent in wire.sent if sent[2]])
        assert answer[0][0] == 1


def refusal(wire: Any) -> str:
    """Wait until a request is refused; return the error that its caller gets."""
    wire.wait_until(lambda: [sent for sent in wire.sent if sent[2]])
    assert not wire.rejected
    (answer,) = [parts for _, parts, reply in wire.sent if reply]
    return answer[0].decode(errors="replace")


@in_worker
@pytest.mark.parametrize("name", INVALID_REQUESTS)
def test_a_bad_request_with_a_valid_head_fails_its_call_only(me: Any, name: str) -> None:
    spoil, why = INVALID_REQUESTS[name]
    with on_wire() as (agent, wire):
        _, parts = a_request(wire, torch.ones(3), torch.ones(5000))
        wire.inbox.deliver(1, spoil(parts))
        assert re.search(f"worker 'a' refuses the request: .*{why}", refusal(wire))
        assert agent.get_metrics()["agent.bad_frames"] == "1"


@in_worker
def test_a_bad_answer_with_a_valid_head_fails_its_call_only(me: Any) -> None:
    with on_wire() as (_, wire):
        future, parts = a_request(wire)
        second, _ = a_request(wire)
        wire.inbox.deliver(1, change(parts, kind=2))
        assert "RPC to 'b' failed: this worker refuses the answer: its message type" in error_of(
            future
        )
        assert not wire.rejected
        assert not second.done()


@in_worker
def test_sparse_indices_out_of_bounds_are_refused(me: Any) -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.ones(1), (4,))
    with on_wire() as (_, wire):
        _, parts = a_request(wire, sparse)
        # The storages are at the end: the index and the value.
        index, value = (1).to_bytes(8, "little"), torch.ones(1).numpy().tobytes()
        assert parts[0].endswith(index + value)
        wire.inbox.deliver(1, [parts[0][: -len(index + value)] + (9).to_bytes(8, "little") + value])
        assert "a sparse tensor is not valid" in refusal(wire)


def sparse_frame(flags: int = 0, stride: int = 1, count: int = 2) -> Callable[[bytes], bytes]:
    """Change the description of a sparse tensor's indices: one row, `count` columns."""

    def changed(first: bytes) -> bytes:
        # kind, flags, dimensions, a size; then the indices.
        at = HEAD.size + 2 * 9 + 1 + 1 + 1 + 8
        indices = bytearray(first[at : at + 3 + 4 + 8 + 16 + 16])
        assert indices[2] == 2, "dimensions of the indices"
        indices[1] = flags
        indices[7 + 8 + 8 : 7 + 8 + 16] = count.to_bytes(8, "little")
        indices[-8:] = stride.to_bytes(8, "little")
        return first[:at] + bytes(indices) + first[at + len(indices) :]

    return changed


@in_worker
def test_indices_that_are_a_negative_view_are_refused(me: Any) -> None:
    # The values that are checked must be the ones that torch uses.
    sparse = torch.sparse_coo_tensor(torch.tensor([[1, 2]]), torch.ones(2), (4,))
    with on_wire() as (_, wire):
        _, parts = a_request(wire, sparse)
        wire.inbox.deliver(1, [sparse_frame(flags=4)(parts[0])])
        assert "are a negative or conjugate view" in refusal(wire)


@in_worker
def test_expanded_indices_are_refused_quickly(me: Any) -> None:
    # There are too many expanded indices to check one by one.
    sparse = torch.sparse_coo_tensor(torch.tensor([[1, 2]]), torch.ones(2), (4,))
    with on_wire() as (_, wire):
        _, parts = a_request(wire, sparse)
        wire.inbox.deliver(1, [sparse_frame(stride=0, count=1 << 55)(parts[0])])
        assert "has more elements than memory" in refusal(wire)
