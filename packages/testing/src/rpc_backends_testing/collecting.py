"""Checks and order of the suite's tests, after pytest has collected them."""

from __future__ import annotations

import pytest

from rpc_backends_testing.chapters import CHAPTERS
from rpc_backends_testing.exclusions import check_exclusions
from rpc_backends_testing.marks import REQUIREMENT
from rpc_backends_testing.outcomes import id_of, subject_of


def check(items: list[pytest.Item]) -> None:
    """Check that each requirement has a backend that can be loaded and accepts the options.

    :raises pytest.UsageError: no backend is named, or it does not exist, cannot be loaded, rejects the
        options, or excludes an unknown requirement.
    """
    from rpc_backends_core.spi import RpcBackendsError
    from rpc_backends_core.spi.inspection import construct_rpc_backend_options, records

    tried = []
    for item in items:
        chosen = subject_of(item)
        if chosen is None:
            usable = [
                record.name
                for record in records()
                if record.state in ("found", "loaded", "registered")
            ]
            raise pytest.UsageError(
                f"{item.name} belongs to the conformance suite, and no backend is named. Use "
                f"--rpc-backend NAME; installed backends: {', '.join(dict.fromkeys(usable))}."
            )
        subject, _ = chosen
        try:
            _ = subject.capabilities
        except RpcBackendsError as error:
            raise pytest.UsageError(f"--rpc-backend {subject.name}: {error}") from error
        if subject.options and subject not in tried:
            tried.append(subject)
            try:
                construct_rpc_backend_options(subject.name, **subject.options)
            except Exception as error:
                shown = ", ".join(f"{key}={value!r}" for key, value in subject.options.items())
                raise pytest.UsageError(
                    f"{subject.name} refuses the options {shown}: {type(error).__name__}: {error}"
                ) from error
        if item.path.parent.name == "torch_tier":
            from rpc_backends_testing.torch_tier.fixture import announce

            announce(subject)
    _check_exclusions(items)


def _check_exclusions(items: list[pytest.Item]) -> None:
    collected: dict[str, set[str]] = {}
    excluded = {}
    for item in items:
        chosen, mark = subject_of(item), item.get_closest_marker(REQUIREMENT)
        assert chosen is not None
        assert mark is not None
        name = chosen[0].name
        collected.setdefault(name, set()).add(id_of(item, mark.kwargs["chapter"]))
        excluded[name] = chosen[0].excluded
    for name, ids in collected.items():
        try:
            check_exclusions(name, excluded[name], ids)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error


def arrange(items: list[pytest.Item]) -> None:
    """Sort each uninterrupted sequence of the suite's tests by chapter."""
    order = {chapter.name: place for place, chapter in enumerate(CHAPTERS)}

    def place(item: pytest.Item) -> int:
        mark = item.get_closest_marker(REQUIREMENT)
        return order.get(mark.kwargs["chapter"], len(order)) if mark else -1

    start = 0
    while start < len(items):
        end = start
        while end < len(items) and (place(items[end]) < 0) == (place(items[start]) < 0):
            end += 1
        items[start:end] = sorted(items[start:end], key=place)
        start = end
