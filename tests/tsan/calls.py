"""Run under ThreadSanitizer: the tests that create agents, and storms of calls.

All agents are in one process, on transports in memory, on sockets (Python) and on ZEROMQ.
"""

from __future__ import annotations

import inspect
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "packages/agents/tests"), str(ROOT / "tests")]

import agents_kit  # noqa: E402
import recorder  # noqa: E402
import test_calls  # noqa: E402
import test_codec  # noqa: E402
import test_interceptors  # noqa: E402
import test_mutated_frames  # noqa: E402
import test_pieces  # noqa: E402
import test_start  # noqa: E402
import test_thread_pool  # noqa: E402
import torch  # noqa: E402
from torch.distributed import rpc  # noqa: E402

from rpc_backend_zeromq import ZeroMQRpcBackendOptions  # noqa: E402
from rpc_backend_zeromq._native import Transport, make_keys  # noqa: E402
from rpc_backends_agents.transports.sockets import SocketTransport  # noqa: E402


def cases(test: Callable[..., None]) -> Iterator[dict[str, Any]]:
    """Yield the parameters of each case of a test."""
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    names = [mark.args[0] for mark in marks]
    for values in itertools.product(*(mark.args[1] for mark in marks)):
        yield dict(zip(names, values, strict=True))


def run_tests() -> None:
    """Run the tests in this process."""
    test_mutated_frames.FRAMES = 2000
    library = recorder.build(Path(__file__).parent / "build")
    modules = (test_calls, test_codec, test_interceptors, test_pieces, test_start, test_thread_pool)
    for module in (*modules, test_mutated_frames):
        for name, test in inspect.getmembers(module, inspect.isfunction):
            body = inspect.unwrap(test)
            needs = inspect.signature(body).parameters
            if (
                not name.startswith("test_") or "me" not in needs
            ):  # such tests start processes of their own
                continue
            more = {"library": library} if "library" in needs else {}
            for parameters in cases(test):
                body(None, **parameters, **more)
        print(module.__name__, flush=True)


def look(agent: Any) -> None:
    """Read metrics, debug info and members of an agent, which may end meanwhile."""
    for _ in range(50):
        agent.get_metrics()
        agent.get_debug_info()
        agent.traffic()
        agent.get_worker_infos()


def storm(agents: tuple[Any, Any], rounds: int) -> None:
    """Make calls of several kinds from several threads, while another thread reads the agents' state."""
    over = threading.Event()

    def call() -> None:
        for number in range(rounds):
            who = "b" if number % 5 else "a"
            rpc.rpc_sync(who, torch.add, args=(torch.ones(2), 1))
            rpc.rpc_sync(who, agents_kit.identity, args=(torch.ones(3000),))
            if number % 10 == 0:
                rpc.rpc_sync("b", agents_kit.identity, args=(torch.ones(1 << 19),))
                rpc.rpc_async("b", agents_kit.identity, args=(1,), timeout=0.001)

    def look_on() -> None:
        while not over.is_set():
            for agent in agents:
                look(agent)

    threads = [threading.Thread(target=call) for _ in range(4)]
    watcher = threading.Thread(target=look_on)
    for thread in (watcher, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    watcher.join()


def zeromq(encrypted: bool) -> Any:
    """Return a listening transport of ZEROMQ."""
    public, secret = make_keys() if encrypted else (None, None)
    transport = Transport(
        public_key=public,
        secret_key=secret,
        handshake_timeout=20,
        on_unknown_key=lambda key, _: keys.get(key),
        **ZeroMQRpcBackendOptions(heartbeat=1, heartbeat_timeout=20).native({}),
    )
    number = len(keys) % 2
    if public is not None:
        keys[public] = number
    transport.bind(["tcp://127.0.0.1:*"])
    return transport


#: The worker of each public key: a worker may connect before its peer has learned of it.
keys: dict[bytes, int] = {}


def storm_and_end(transport: Callable[[], Any]) -> None:
    """Run a storm over a kind of transport, and shut both agents down in the middle of calls."""
    agent_a, agent_b = (
        agents_kit.make(transport(), name, number, rpc_timeout=600)
        for number, name in enumerate("ab")
    )
    addresses = agent_a.listen(), agent_b.listen()
    agent_a.learn(1, "b", addresses[1])
    agent_b.learn(0, "a", addresses[0])
    agent_a.add_member("b", 1)
    agent_b.add_member("a", 0)
    agents_kit.start(agent_b)
    agents_kit.start(agent_a)
    storm((agent_a, agent_b), 30)
    calls = [rpc.rpc_async("b", agents_kit.identity, args=(n,)) for n in range(200)]
    ends = [threading.Thread(target=agent.shutdown) for agent in (agent_a, agent_b)]
    ends += [threading.Thread(target=look, args=(agent,)) for agent in (agent_a, agent_b)]
    for thread in ends:
        thread.start()
    for future in calls:
        try:
            future.wait()
        except RuntimeError:
            continue
    for thread in ends:
        thread.join()
    agents_kit.no_current_agent()


def storms() -> None:
    """Run a storm over each kind of transport."""
    with agents_kit.two_agents() as agents:
        storm(agents, 50)
    print("storm in memory", flush=True)
    kinds: dict[str, Callable[[], Any]] = {
        "sockets": SocketTransport,
        "ZEROMQ": lambda: zeromq(False),
        "ZEROMQ, encrypted": lambda: zeromq(True),
    }
    for name, transport in kinds.items():
        storm_and_end(transport)
        print(f"storm over {name}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] != ["storms"]:
        run_tests()
    storms()
    print("done")
