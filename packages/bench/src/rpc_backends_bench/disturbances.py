"""Warn about a run on a machine that was not idle, or whose cores fell asleep."""

from __future__ import annotations

from collections.abc import Iterator

from rpc_backends_bench.machine import stolen_share
from rpc_backends_bench.results import BASELINE, Results
from rpc_backends_bench.statistics import quantile

#: What share of the cores' time other programs may take before a run counts as disturbed.
_MAX_BUSY = 0.15
#: What share of the time the host of a virtual machine may give to other machines.
_MAX_STOLEN = 0.02
#: By what factor the time of a bare socket may differ between two rounds.
_MAX_SOCKET_FACTOR = 3.0
#: How many rounds are needed to judge that.
_MIN_ROUNDS = 5


def disturbances(results: Results) -> list[str]:
    """Return a warning for each way in which the machine disturbed the run."""
    return [*_busy(results), *_stolen(results), *_asleep(results)]


def _busy(results: Results) -> Iterator[str]:
    share = results.machine.get("busy_before", 0.0)
    if share > _MAX_BUSY:
        yield (
            f"Other programs took {share:.0%} of the cores when this run began. That slows backends that "
            "poll for messages (TensorPipe) more than those that sleep until one arrives. Times and "
            "ratios differ from those of an idle machine."
        )


def _stolen(results: Results) -> Iterator[str]:
    share = stolen_share(results.machine)
    if share > _MAX_STOLEN:
        yield (
            f"The host of this virtual machine gave {share:.1%} of its time to other machines during the "
            "run, so figures differ from run to run."
        )


def _asleep(results: Results) -> Iterator[str]:
    socket = results.of("latency.noop", None, f"{BASELINE}socket")
    if socket is None or results.machine.get("awake"):
        return
    times = sorted(value for _, _, value in socket.points)
    low, high = quantile(times, 10), quantile(times, 90)
    if len(times) >= _MIN_ROUNDS and high > _MAX_SOCKET_FACTOR * low:
        yield (
            f"64 bytes there and back over a bare socket took {low * 1e6:.0f} us in some rounds and "
            f"{high * 1e6:.0f} us in others: idle cores of this machine fall asleep, and to wake one "
            "takes as long as a call. All programs on this machine have that delay. It slows backends "
            "that sleep until a message arrives, and their ratios differ from run to run. --awake keeps "
            "the cores awake."
        )
