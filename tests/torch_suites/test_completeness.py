"""Checks of the run itself: torch's suites are complete and run on the right backend."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest

from . import served, suites

pytestmark = pytest.mark.torch_suites

PACKAGES = {
    "TENSORPIPE": "rpc_backend_tensorpipe",
    "FAULTY_TENSORPIPE": "rpc_backend_faulty_tensorpipe",
}
TORCH_HANDLERS = {
    "TENSORPIPE": "_tensorpipe_init_backend_handler",
    "FAULTY_TENSORPIPE": "_faulty_tensorpipe_init_backend_handler",
}


@pytest.mark.parametrize("which", suites.ALL, ids=lambda which: which.backend)
def test_torchs_suites_have_the_expected_number_of_tests(which: suites.Suites) -> None:
    """The test fails if a suite is lost, or if a new torch adds tests."""
    module = importlib.import_module(f"{__package__}.test_{which.backend.lower()}")
    tests = suites.generated_tests(which, module)
    release = suites.torch_release()
    if release not in suites.EXPECTED_TESTS:
        known = ", ".join(suites.EXPECTED_TESTS)
        pytest.skip(
            f"torch {release} has {tests} tests for {which.backend};"
            f" the expected number is known only for torch {known}"
        )
    assert tests == suites.EXPECTED_TESTS[release][which.backend]


@pytest.mark.parametrize("backend", PACKAGES)
def test_suites_run_on_the_expected_package(
    backend: str, torch_suites_stock: bool, record_property: Callable[[str, object], None]
) -> None:
    """The handlers in the tests' processes are the plugin's, or torch's own in a run on stock torch."""
    answer = served.ask(backend)
    record_property("torch_suites_served", [backend, answer.distribution])
    assert answer.one_enum or torch_suites_stock
    package = "torch" if torch_suites_stock else PACKAGES[backend]
    assert {name.partition(".")[0] for name in answer.handlers} == {package}
    assert [name for name in answer.called if name.partition(".")[0].partition(":")[0] == package]
    by_torch = [name for name in answer.called if name.endswith(f":{TORCH_HANDLERS[backend]}")]
    assert bool(by_torch) == torch_suites_stock
