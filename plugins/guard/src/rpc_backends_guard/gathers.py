"""Torch's gathers, which a graceful shutdown uses: who may take part, and who may announce the result."""

from __future__ import annotations

from typing import Any

from rpc_backends_core.spi import torch_internals

#: By how many gathers a member may be ahead of this worker.
_MOST_AHEAD = 8


def check_arrival(
    arguments: tuple[Any, ...], keywords: dict[str, Any], worker: str, peer: str | None
) -> str:
    """Return why a worker may not take part in a gather that this worker leads; empty if it may.

    :param arguments: of the call: sequence id, name of the sender, its value, the names of all members.
    :param worker: the name of this worker.
    :param peer: the worker that sends it; None if the backend does not tell.
    """
    if len(arguments) != 4 or keywords:
        return "it takes part in a gather in another form than torch's"
    sequence, name, _, members = arguments
    problem = _problem(sequence, members, worker, peer)
    if problem:
        return problem
    if type(name) is not str or (peer is not None and name != peer):
        return "it answers for another worker in a gather"
    if min(members) != worker:
        return "it takes part in a gather that another worker leads"
    return ""


def check_announcement(
    arguments: tuple[Any, ...], keywords: dict[str, Any], worker: str, peer: str | None
) -> str:
    """Return why a worker may not announce the result of a gather; empty if it may.

    :param arguments: of the call: sequence id, and the values by the names of their senders.
    """
    if len(arguments) != 2 or keywords or type(arguments[1]) is not dict:
        return "it announces the result of a gather in another form than torch's"
    sequence, values = arguments
    members = set(values) if all(type(name) is str for name in values) else None
    problem = _problem(sequence, members, worker, peer)
    if problem:
        return problem
    assert members is not None
    if peer is not None and min(members) != peer:
        return "it announces the result of a gather that another worker leads"
    return ""


def _problem(sequence: Any, members: Any, worker: str, peer: str | None) -> str:
    if type(members) is not set or not all(type(name) is str for name in members):
        return "it names the members of a gather in another form than torch's"
    if worker not in members or (peer is not None and peer not in members):
        return "it names a gather in which it or this worker has no part"
    together = "".join(sorted(members))
    number = sequence.removeprefix(together) if type(sequence) is str else ""
    if not (sequence == f"{together}{number}" and number.isascii() and number.isdecimal()):
        return "it names a gather of other members"
    # Torch keeps what is gathered until the gather ends, so a sender must not begin many.
    count = torch_internals.gather_count(together)
    if len(number) > 9 or not count - 1 <= int(number) < count + _MOST_AHEAD:
        return "it names a gather that is over, or far ahead"
    return ""
