"""Churn: peers are killed (SIGKILL), suspended (SIGSTOP) and resumed at random, leave, and are replaced.

The workers, which are never killed, are the survivors. The plan's seed determines what happens when.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import traffic

from rpc_backends_bench import worker_tasks
from rpc_backends_bench.subjects import Subject
from rpc_backends_processes import (
    Done,
    Ended,
    Failure,
    News,
    Step,
    Template,
    WorkerContext,
    Workers,
)

#: For how many ticks the survivors go on calling a killed peer.
_CALLED_AFTER_KILL_TICKS = 12
#: For how many ticks a peer is suspended, at least and at most.
_SUSPENDED_TICKS = (1, 24)
#: How often peers leave, and how often a peer's successor has its name.
_LEAVES_PER_KILL, _SAME_NAME = 0.5, 0.5
#: For how many ticks a peer is not called any more before it leaves, so that its last calls have ended.
_LEFT_AFTER_TICKS = 24
#: How many characters of a peer's output an error shows.
_MAX_OUTPUT = 3000


def be_a_peer(
    me: WorkerContext,
    subject: Subject,
    url: str,
    world_size: int | None,
    number: int,
    callees: list[str],
    seed: int,
) -> None:
    """Join as ``peer<number>``, report that, and answer and make calls until the process is killed.

    SIGTERM makes the peer leave the group.
    """
    leave = threading.Event()
    # In a thread: what the signal interrupts may hold the lock of the event.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=leave.set).start())
    own = replace(me, name=f"peer{number}", index=number)
    worker_tasks.join(own, subject, url, world_size)
    me.tell("joined")
    traffic.be_called_and_call(own, callees, seed, leave)
    worker_tasks.leave(me, graceful=False)  # calls to peers that have died may be active


@dataclass
class Peer:
    """A peer. It is the only process of its `Workers`, so that all its resources are freed at its end."""

    number: int
    workers: Workers
    step: Step
    joined: bool = False
    leaves_in: int = 0  # ticks until it is made to leave; 0 if it stays
    is_leaving: bool = False
    resumed_in: int = 0  # ticks until it is resumed; 0 if it is not suspended

    @property
    def name(self) -> str:
        """The peer's name."""
        return f"peer{self.number}"

    @property
    def pid(self) -> int:
        """The peer's process id."""
        return self.workers[0].pid


@dataclass
class Churn:
    """The peers of a run.

    :ivar start: starts the peer with a given number.
    :ivar replaced: whether a new peer replaces a killed one, as in a dynamic group.
    :ivar deaths: mean number of ticks between two kills.
    :ivar list_file: the file with the names of the peers, which the survivors read.
    :ivar peers: the running peers.
    :ivar missed: by name of a killed peer, for how many more ticks it is called.
    :ivar counts: how many peers have joined, were killed or suspended, and have left.
    :ivar wrong: errors that peers have reported, and peers that ended without being killed.
    :ivar next: the number of the next peer.
    """

    start: Callable[[int], tuple[Workers, Step]]
    replaced: bool
    deaths: float
    chance: random.Random
    list_file: Path
    peers: list[Peer] = field(default_factory=list)
    missed: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("joined", "killed", "suspended", "left"), 0)
    )
    wrong: list[str] = field(default_factory=list)
    next: int = 0

    def add(self, number: int | None = None) -> None:
        """Start another peer; ``number``: that of its predecessor, None for a new one."""
        if number is None:
            number = self.next
            self.next += 1
        self.peers.append(Peer(number, *self.start(number)))

    def wait_until_joined(self) -> None:
        """Wait until all peers have joined.

        :raises WorkerError: a peer could not join.
        """
        for peer in self.peers:
            peer.step.news()
            self._has_joined(peer)
        self._tell()

    def tick(self) -> None:
        """Receive the peers' reports; kill, suspend and resume peers at random."""
        for peer in list(self.peers):
            self._hear(peer)
        for name in [name for name, left in self.missed.items() if left <= 1]:
            del self.missed[name]
        self.missed = {name: left - 1 for name, left in self.missed.items()}
        for peer in self.peers:
            if peer.resumed_in:
                peer.resumed_in -= 1
                if not peer.resumed_in:
                    os.kill(peer.pid, signal.SIGCONT)
            if peer.leaves_in and not peer.is_leaving:
                peer.leaves_in -= 1
                if not peer.leaves_in:
                    peer.leaves_in, peer.is_leaving = 1, True
                    os.kill(peer.pid, signal.SIGTERM)
        living = [peer for peer in self.peers if peer.joined and not peer.leaves_in]
        # Peers are suspended as often as killed, but one always runs, so that calls continue.
        if living and self.chance.random() < 1 / self.deaths:
            self._kill(self.chance.choice(living))
        running = [peer for peer in living if peer in self.peers and not peer.resumed_in]
        if len(running) > 1 and self.chance.random() < 1 / self.deaths:
            peer = self.chance.choice(running)
            peer.resumed_in = self.chance.randint(*_SUSPENDED_TICKS)
            self.counts["suspended"] += 1
            os.kill(peer.pid, signal.SIGSTOP)
            running.remove(peer)
        if self.replaced and running and self.chance.random() < _LEAVES_PER_KILL / self.deaths:
            peer = self.chance.choice(running)
            peer.leaves_in = _LEFT_AFTER_TICKS
        self._tell()

    def close(self) -> None:
        """Kill all peers."""
        for peer in self.peers:
            peer.workers.__exit__()
        self.peers = []

    def _kill(self, peer: Peer) -> None:
        self.counts["killed"] += 1
        peer.workers.__exit__()  # SIGKILL
        self._is_gone(peer)

    def _is_gone(self, peer: Peer) -> None:
        self.peers.remove(peer)
        if not peer.is_leaving:
            self.missed[peer.name] = _CALLED_AFTER_KILL_TICKS
        if self.replaced:
            self.add(peer.number if self.chance.random() < _SAME_NAME else None)

    def _hear(self, peer: Peer) -> None:
        while (report := peer.step.hear(0)) is not None:
            if isinstance(report, News) and not peer.joined:
                self._has_joined(peer)
            elif isinstance(report, News):
                self.wrong.append(f"{peer.name}: {report.value}")
            elif isinstance(report, Done) and peer.is_leaving:
                self.counts["left"] += 1
                peer.workers.__exit__()
                self._is_gone(peer)
                return
            else:
                how = f"status {report.status}" if isinstance(report, Ended) else "its step ended"
                trace = report.trace if isinstance(report, Failure) else ""
                output = peer.workers[0].output[-_MAX_OUTPUT:]
                self.wrong.append(f"{peer.name} ended without being killed, {how}\n{trace}{output}")
                peer.workers.__exit__()
                self._is_gone(peer)
                return

    def _has_joined(self, peer: Peer) -> None:
        peer.joined = True
        self.counts["joined"] += 1

    def _tell(self) -> None:
        called = (peer.name for peer in self.peers if peer.joined and not peer.leaves_in)
        names = [*{*called, *self.missed}]
        new = self.list_file.with_suffix(".new")
        new.write_text(json.dumps(names))
        new.replace(self.list_file)


def start_peer(
    template: Template,
    seconds: float,
    number: int,
    subject: Subject,
    url: str,
    world_size: int | None,
    callees: list[str],
    seed: int,
) -> tuple[Workers, Step]:
    """Start the process of ``peer<number>``, which is ended after ``seconds`` in any case."""
    workers = Workers(1, seconds=seconds, template=template).__enter__()
    try:
        step = workers[0].start(be_a_peer, subject, url, world_size, number, callees, seed + number)
    except BaseException:
        workers.__exit__()
        raise
    return workers, step
