"""Converts the options of torch's FAULTY_TENSORPIPE to rules with the same effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rpc_backends_faults.rules import Length, Rule


def rules(
    messages_to_fail: Iterable[str] = (),
    messages_to_delay: Mapping[str, float] | None = None,
    num_fail_sends: int = 0,
) -> list[Rule]:
    """Return rules for the options of torch's ``FaultyTensorPipeRpcBackendOptions``.

    :param messages_to_fail: message types to fail.
    :param messages_to_delay: delay in seconds, by message type.
    :param num_fail_sends: how many sends of each payload fail before one succeeds.
    """
    made = []
    types = tuple(messages_to_fail)
    if types and num_fail_sends:
        made.append(
            Rule(
                name="messages_to_fail",
                what="fail",
                messages=types,
                first=num_fail_sends,
                per="payload",
                housekeeping=True,
            )
        )
    for kind, seconds in (messages_to_delay or {}).items():
        if seconds:
            made.append(
                Rule(
                    name=f"messages_to_delay.{kind}",
                    what="delay",
                    messages=(kind,),
                    length=Length(seconds),
                    housekeeping=True,
                )
            )
    return made
