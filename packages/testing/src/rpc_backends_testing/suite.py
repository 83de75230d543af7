"""The whole suite: its version, its modules, and the class for an author's own tests."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

import pytest

from rpc_backends_core.spi import CONTRACT_VERSION
from rpc_backends_testing import chapters
from rpc_backends_testing.subject import Subject

#: It increases by one when a requirement is added or made stricter; that requirement has ``since``.
SUITE_VERSION = CONTRACT_VERSION

#: The mark that holds the backend under test and the version of the suite that counts.
BACKEND = "rpc_backend"


def modules() -> tuple[str, ...]:
    """Return the names of the suite's test modules, in the order of the chapters."""
    there = {info.name for info in pkgutil.iter_modules(chapters.__path__)}
    names = [f"test_{chapter.name}" for chapter in chapters.CHAPTERS]
    return tuple(f"{chapters.__name__}.{name}" for name in names if name in there)


def conformance(
    backend: str,
    *,
    options: Mapping[str, Any] | None = None,
    suite_version: int = SUITE_VERSION,
) -> type:
    """Return the suite as a class of tests, for an author's test module.

    ::

        TestMine = conformance("MINE", suite_version=1)

    :param backend: the backend to test.
    :param options: options that every test passes to its construct handler.
    :param suite_version: requirements newer than this version of the suite run, and fail nothing.
    :raises ValueError: the installed suite has no such version.
    """
    check_version(suite_version, "suite_version")
    body: dict[str, Any] = {"__doc__": f"{backend} does what the contract asks."}
    for name in modules():
        module = importlib.import_module(name)
        chapter = name.rpartition(".test_")[2]
        classes = {key: value for key, value in vars(module).items() if _is_test_class(value)}
        if classes:
            for key, class_ in classes.items():
                body[key] = type(key, (class_,), {"pytestmark": module.pytestmark})
            continue
        tests = {key: staticmethod(value) for key, value in vars(module).items() if _is_test(value)}
        class_ = type(f"Test{chapter.capitalize()}", (), {"__doc__": module.__doc__, **tests})
        class_.pytestmark = module.pytestmark  # type: ignore[attr-defined]
        body[class_.__name__] = class_
    body["pytestmark"] = getattr(pytest.mark, BACKEND)(
        Subject(backend, dict(options or {})), suite_version
    )
    return type(f"Test{backend}", (), body)


def check_version(version: int, name: str) -> None:
    """Check that the installed suite has a version.

    :param name: what sets the version, for the error.
    :raises ValueError: it does not.
    """
    if 1 <= version <= SUITE_VERSION:
        return
    has = "version 1" if SUITE_VERSION == 1 else f"versions 1 to {SUITE_VERSION}"
    remedy = "pip install --upgrade rpc-backends-testing" if version > 0 else "use 1 or more"
    raise ValueError(f"{name} is {version}; the installed suite has {has}: {remedy}")


def _is_test(value: Any) -> bool:
    # Chapters define no fixtures: pytest warns of one that is a static method.
    return callable(value) and getattr(value, "__name__", "").startswith("test_")


def _is_test_class(value: Any) -> bool:
    return isinstance(value, type) and value.__name__.startswith("Test")
