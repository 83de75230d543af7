"""A network capture of calls contains neither payloads nor function names."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.distributed import rpc

from support import steps
from support.networks import Capture, Host, enter, lonely_host
from support.workers import WorkerContext, Workers
from support.zeromq import join

pytestmark = pytest.mark.slow

#: The data of the calls. The tensor repeats these bytes, so every packet of it has several copies.
TENSOR = b"0123456789abcdef"
TEXT = "a text that only the two workers may read"
ANSWER = "a reply for the caller only"
ERROR = "an error for the caller only"
SECRETS = {
    "the tensor": TENSOR * 4,
    "the text": TEXT.encode(),
    "the answer": ANSWER.encode(),
    "the error": ERROR.encode(),
    "the function": b"echo_on_a_worker",
    "the function that fails": b"fail_in_a_worker",
    "the module": b"test_capture",
    "the RRef's type": b"KeptByAWorker",
}


#: The bytes of 1,000 tensors, and what is looked for of each: two parts, as one may lie in two packets.
TENSORS = [random.Random(number).randbytes(256) for number in range(1000)]
TRACES = [
    (tensor[number % 100 :][:16], tensor[128 + number % 100 :][:16])
    for number, tensor in enumerate(TENSORS)
]


class KeptByAWorker:
    """A value on another worker."""


def echo_on_a_worker(tensor: torch.Tensor, text: str) -> tuple[torch.Tensor, str]:
    """Return the tensor and a text; called by RPC."""
    assert text == TEXT
    return tensor, ANSWER


def fail_in_a_worker() -> None:
    """Raise an error; called by RPC."""
    raise ValueError(ERROR)


def double_on_a_worker(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors twice; called by RPC."""
    return [*tensors, *tensors]


def call_with_many_tensors(me: WorkerContext, to: str) -> None:
    """Send 1,000 tensors, all of them in a call and some alone, and check what returns."""
    tensors = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in TENSORS]
    answer = rpc.rpc_sync(to, double_on_a_worker, args=(tensors,))
    assert all(torch.equal(*pair) for pair in zip(answer, tensors * 2, strict=True))
    for tensor in tensors[::20]:
        assert torch.equal(rpc.rpc_sync(to, double_on_a_worker, args=([tensor],))[0], tensor)


def call_with_secrets(me: WorkerContext, to: str) -> None:
    """Make calls whose contents must not be in the capture."""
    tensor = torch.frombuffer(bytearray(TENSOR * 1000), dtype=torch.uint8)
    answer, text = rpc.rpc_sync(to, echo_on_a_worker, args=(tensor, TEXT))
    assert torch.equal(answer, tensor)
    assert text == ANSWER
    with pytest.raises(ValueError, match=ERROR):
        rpc.rpc_sync(to, fail_in_a_worker)
    rpc.remote(to, KeptByAWorker).rpc_sync()


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with lonely_host() as alone:
        yield alone


def captured(host: Host, tmp_path: Path, **options: object) -> Capture:
    """Run two workers that call each other over TCP, and return all captured traffic."""
    with Workers(2) as workers, Capture(host) as capture:
        workers.run(enter, host)
        # The store is a file, so all traffic is that of the workers.
        workers.run(join, f"file://{tmp_path}/store", unix_sockets=False, **options)
        for me, peer in ((0, 1), (1, 0)):
            workers[me].call(call_with_secrets, f"worker{peer}")
        workers[0].call(call_with_many_tensors, "worker1")
        workers.run(steps.leave)
    # Each of two callers sends the tensor and gets it back.
    assert capture.size > 4 * len(TENSOR * 1000) + 3 * sum(map(len, TENSORS))
    return capture


@pytest.mark.parametrize("with_secret", [False, True])
def test_the_capture_contains_nothing_of_a_call(
    host: Host, tmp_path: Path, text: str, with_secret: bool
) -> None:
    capture = captured(host, tmp_path, **({"secret": text} if with_secret else {}))
    assert {what: capture.count(secret) for what, secret in SECRETS.items()} == dict.fromkeys(
        SECRETS, 0
    )
    assert capture.count(text.encode()) == 0
    assert not [n for n, traces in enumerate(TRACES) if any(map(capture.count, traces))]
    # The search works: it finds what is not encrypted, which is the start of each TLS record.
    assert capture.count(b"\x17\x03\x03") > 0


def test_without_encryption_the_capture_contains_everything(host: Host, tmp_path: Path) -> None:
    """The search finds the data if it is not encrypted."""
    capture = captured(host, tmp_path, encryption=False)
    assert {what for what, secret in SECRETS.items() if capture.count(secret)} == set(SECRETS)
    assert [n for n, traces in enumerate(TRACES) if not any(map(capture.count, traces))] == []
