"""What a test of the suite says of itself: its chapter, what it takes, since when it is asked."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from rpc_backends_testing.groups import SECONDS, Groups

#: The mark that makes a test a requirement; see :func:`requirement`.
REQUIREMENT = "rpc_requirement"


def requirement(
    chapter: str, *, capability: str | None = None, since: int = 1
) -> pytest.MarkDecorator:
    """Mark tests as requirements of the contract.

    A test's docstring is what it requires, in one sentence, and then what an author who fails it should
    look at. Of two of these marks (on a module and on a test, say) the nearer one's values count.

    :param chapter: the chapter it belongs to.
    :param capability: what a backend must declare for it to count; if it does not, the test is tried all
        the same, and the report says whether it works.
    :param since: the version of the suite that asked for it first.
    """
    mark: pytest.MarkDecorator = getattr(pytest.mark, REQUIREMENT)(
        chapter=chapter, capability=capability, since=since
    )
    return mark


def in_group(
    size: int, *, seconds: float = SECONDS, **options: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a step a test: it runs in worker 0 of a static group, and then the group shuts down.

    :param size: the number of workers; they are named ``worker0`` ...
    :param seconds: how long the test may take.
    :param options: for the backend, ``rpc_timeout`` say.
    """

    def decorate(step: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(step)
        def test(rpc_groups: Groups, **arguments: Any) -> None:
            rpc_groups.run_in_first(size, step, seconds, options, arguments)

        # pytest reads from the signature what a test needs: the group, and the step's parameters.
        parameters = list(inspect.signature(step).parameters.values())[1:]
        groups = inspect.Parameter("rpc_groups", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = inspect.Signature([groups, *parameters])  # type: ignore[attr-defined]
        return test

    return decorate
