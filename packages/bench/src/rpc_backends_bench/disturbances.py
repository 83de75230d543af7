"""What a reader has to know of a run on a machine that was not idle, or did not stay awake."""

from __future__ import annotations

from collections.abc import Iterator

from rpc_backends_bench.machine import stolen_share
from rpc_backends_bench.results import BASELINE, Results
from rpc_backends_bench.statistics import quantile

#: Share of the cores' time that other programs may take before a run counts as disturbed.
_BUSY = 0.15
#: Share of the time in which the host of a virtual machine may run others in its place.
_STOLEN = 0.02
#: How often as long a bare socket may take in one round as in another.
_UNSTEADY = 3.0
#: Rounds that tell that.
_ENOUGH = 5


def disturbances(results: Results) -> list[str]:
    """Return it, a text for each."""
    return [*_busy(results), *_stolen(results), *_asleep(results)]


def _busy(results: Results) -> Iterator[str]:
    share = results.machine.get("busy_before", 0.0)
    if share > _BUSY:
        yield (
            f"Other programs took {share:.0%} of the cores when this began. Backends that look for "
            "messages all the time (TensorPipe) lose more by that than those that wait: neither times "
            "nor ratios are those of an idle machine."
        )


def _stolen(results: Results) -> Iterator[str]:
    share = stolen_share(results.machine)
    if share > _STOLEN:
        yield (
            f"The host of this virtual machine gave {share:.1%} of its time to others while this ran: "
            "figures differ from run to run."
        )


def _asleep(results: Results) -> Iterator[str]:
    socket = results.of("latency.noop", None, f"{BASELINE}socket")
    if socket is None or results.machine.get("awake"):
        return
    times = sorted(value for _, _, value in socket.points)
    low, high = quantile(times, 10), quantile(times, 90)
    if len(times) >= _ENOUGH and high > _UNSTEADY * low:
        yield (
            f"64 bytes there and back over a bare socket took {low * 1e6:.0f} us in some rounds and "
            f"{high * 1e6:.0f} us in others: idle cores fall asleep here, and to wake them takes as long "
            "as a call. Whoever uses this machine as it is meets that, too. It slows backends that wait "
            "for messages, and their ratios differ from run to run. --awake keeps the cores awake."
        )
