"""Marks of the suite's tests: chapter, capability, and version of the suite."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from rpc_backends_testing.groups import SECONDS, Groups

#: The mark that makes a test a requirement; see :func:`requirement`.
REQUIREMENT = "rpc_requirement"


def requirement(
    chapter: str, *, capability: str | None = None, since: int = 1
) -> pytest.MarkDecorator:
    """Mark tests as requirements of the contract.

    The first sentence of a test's docstring is the requirement; the rest tells an author where to look if
    it fails. A mark of a test overrides that of its module.

    :param chapter: the chapter of the requirement.
    :param capability: the capability that a backend must declare for the requirement to count. Without it
        the test runs too, and the report says whether it works.
    :param since: the first version of the suite with the requirement.
    """
    mark: pytest.MarkDecorator = getattr(pytest.mark, REQUIREMENT)(
        chapter=chapter, capability=capability, since=since
    )
    return mark


# pytest's types do not say that this is a class.
class DoesNotApplyError(pytest.skip.Exception):  # type: ignore[misc,name-defined]
    """A requirement does not apply to the backend under test, or to this torch."""


def does_not_apply(reason: str) -> NoReturn:
    """End a test whose requirement does not apply.

    A test that could only not be run here uses ``pytest.skip``: the verdict says that it was not tested.
    """
    raise DoesNotApplyError(reason)


def in_group(
    size: int, *, seconds: float = SECONDS, **options: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a step into a test that runs it in worker 0 of a static group, and then shuts the group down.

    :param size: the number of workers, which are named ``worker0``, ``worker1`` and so on.
    :param seconds: how long the test may take.
    :param options: options of the backend, such as ``rpc_timeout``.
    """

    def decorate(step: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(step)
        def test(rpc_groups: Groups, **arguments: Any) -> None:
            rpc_groups.run_in_first(size, step, seconds, options, arguments)

        # pytest reads the fixtures from the signature: the group, and the step's parameters.
        parameters = list(inspect.signature(step).parameters.values())[1:]
        groups = inspect.Parameter("rpc_groups", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = inspect.Signature([groups, *parameters])  # type: ignore[attr-defined]
        return test

    return decorate
