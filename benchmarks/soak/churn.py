"""Peers that die: killed (SIGKILL), suspended (SIGSTOP) and resumed at random, and replaced by new ones.

The workers that call them and stay are the survivors. What happens when is drawn from the plan's seed.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import traffic

from rpc_backends_bench import worker_tasks
from rpc_backends_bench.subjects import Subject
from rpc_backends_cli.processes import (
    Ended,
    Failure,
    News,
    Step,
    Template,
    WorkerContext,
    Workers,
)

#: Ticks that the survivors go on calling a worker that was killed.
_MISSED_FOR = 4
#: Ticks that a worker is suspended, at least and at most.
_SUSPENDED_FOR = (1, 24)
#: Letters of what a worker has printed that an error shows.
_TAIL = 3000


def be_a_peer(
    me: WorkerContext,
    subject: Subject,
    url: str,
    world_size: int | None,
    number: int,
    callees: list[str],
    seed: int,
) -> None:
    """Join as ``peer<number>``, tell that, answer, and call the survivors until the process is killed."""
    own = replace(me, name=f"peer{number}", index=number)
    worker_tasks.join(own, subject, url, world_size)
    me.tell("joined")
    traffic.be_called_and_call(own, callees, seed)


@dataclass
class Peer:
    """A peer: a process in a `Workers` of its own, so that nothing of it is kept when it is gone."""

    name: str
    workers: Workers
    step: Step
    joined: bool = False
    resumed_in: int = 0  # ticks; 0 while it is not suspended

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self.workers[0].pid


@dataclass
class Churn:
    """The peers of a run.

    :ivar start: starts the peer of a number.
    :ivar replaced: whether a new peer takes the place of one that is killed: in a dynamic group.
    :ivar deaths: mean of the ticks between two of them.
    :ivar list: the file that has the names of the peers for the survivors.
    :ivar wrong: what peers report, and ends that nobody has caused.
    """

    start: Callable[[int], tuple[Workers, Step]]
    replaced: bool
    deaths: float
    chance: random.Random
    list: Path
    peers: list[Peer] = field(default_factory=list)
    missed: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("joined", "killed", "suspended"), 0)
    )
    wrong: list[str] = field(default_factory=list)
    next: int = 0

    def add(self) -> None:
        """Start one more peer."""
        workers, step = self.start(self.next)
        self.peers.append(Peer(f"peer{self.next}", workers, step))
        self.next += 1

    def wait_until_joined(self) -> None:
        """Wait for all that were started.

        :raises WorkerError: one could not join.
        """
        for peer in self.peers:
            peer.step.news()
            self._has_joined(peer)
        self._tell()

    def tick(self) -> None:
        """Hear what the peers report, and do what is drawn to one of them."""
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
        living = [peer for peer in self.peers if peer.joined]
        # As often suspended as killed; never all at once, so that calls go on.
        if living and self.chance.random() < 1 / self.deaths:
            self._kill(self.chance.choice(living))
        running = [peer for peer in self.peers if peer.joined and not peer.resumed_in]
        if len(running) > 1 and self.chance.random() < 1 / self.deaths:
            peer = self.chance.choice(running)
            peer.resumed_in = self.chance.randint(*_SUSPENDED_FOR)
            self.counts["suspended"] += 1
            os.kill(peer.pid, signal.SIGSTOP)
        self._tell()

    def close(self) -> None:
        """Kill what is left."""
        for peer in self.peers:
            peer.workers.__exit__()
        self.peers = []

    def _kill(self, peer: Peer) -> None:
        self.counts["killed"] += 1
        peer.workers.__exit__()  # SIGKILL
        self._is_gone(peer)

    def _is_gone(self, peer: Peer) -> None:
        self.peers.remove(peer)
        self.missed[peer.name] = _MISSED_FOR
        if self.replaced:
            self.add()

    def _hear(self, peer: Peer) -> None:
        while (report := peer.step.hear(0)) is not None:
            if isinstance(report, News) and not peer.joined:
                self._has_joined(peer)
            elif isinstance(report, News):
                self.wrong.append(f"{peer.name}: {report.value}")
            else:
                how = f"status {report.status}" if isinstance(report, Ended) else "its step is over"
                trace = report.trace if isinstance(report, Failure) else ""
                said = peer.workers[0].output[-_TAIL:]
                self.wrong.append(f"{peer.name} ended by itself, {how}\n{trace}{said}")
                peer.workers.__exit__()
                self._is_gone(peer)
                return

    def _has_joined(self, peer: Peer) -> None:
        peer.joined = True
        self.counts["joined"] += 1

    def _tell(self) -> None:
        names = [*(peer.name for peer in self.peers if peer.joined), *self.missed]
        new = self.list.with_suffix(".new")
        new.write_text(json.dumps(names))
        new.replace(self.list)


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
    """Start the process of ``peer<number>``, which lives for so many seconds at most."""
    workers = Workers(1, seconds=seconds, template=template).__enter__()
    try:
        step = workers[0].start(be_a_peer, subject, url, world_size, number, callees, seed + number)
    except BaseException:
        workers.__exit__()
        raise
    return workers, step
