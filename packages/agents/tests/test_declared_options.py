"""An option of an engine is declared once, and everything else follows from the declaration."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from torch.distributed.rpc import RpcBackendOptions

from rpc_backends_agents.engine import (
    YES_OR_NO,
    EngineOptions,
    Option,
    VariableOption,
    construct_handler,
    seconds,
)
from rpc_backends_core.spi import SettingError


class Options(EngineOptions):
    """The options of an engine for these tests."""

    BACKEND = "MADE_UP"

    pause: VariableOption[float] = VariableOption(
        seconds(0, 10), default=1.5, meaning="seconds between two messages", native=True
    )
    careful: VariableOption[bool | None, bool] = VariableOption(
        YES_OR_NO, default=None, meaning="whether to ask twice", native="asks_twice"
    )
    limit: Option[float, int | float] = Option(
        seconds(0.1), default=2, meaning="seconds that a peer may take"
    )


construct = construct_handler(Options)
VARIABLE = "RPC_BACKENDS_MADE_UP_PAUSE"


def test_the_signature_has_types_and_defaults() -> None:
    parameters = inspect.signature(Options).parameters

    assert parameters["pause"].annotation == "float | None"
    assert parameters["careful"].annotation == "bool | None"
    assert parameters["limit"].annotation == "int | float"
    assert (parameters["pause"].default, parameters["limit"].default) == (None, 2)
    assert {parameter.kind for parameter in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}


def test_annotations_may_be_values() -> None:
    """In a module without `from __future__ import annotations`, an annotation is no text."""
    plain = type(
        "Plain",
        (EngineOptions,),
        {
            "BACKEND": "PLAIN",
            "__annotations__": {"size": Option[int], "name": Option[str, str | None]},
            "size": Option(seconds(1), default=1, meaning="its size"),
            "name": Option(seconds(1), default=1, meaning="its name"),
        },
    )
    parameters = inspect.signature(plain).parameters
    assert (parameters["size"].annotation, parameters["name"].annotation) == ("int", "str | None")


def test_class_and_handler_document_each_option() -> None:
    for documented in (Options, construct):
        text = inspect.getdoc(documented) or ""
        for name, option in Options.DECLARED.items():
            assert f":param {name}: {option.meaning}." in text


def test_the_handler_takes_what_torch_passes() -> None:
    options = construct(30.0, "env://", pause=3, limit=4)

    assert isinstance(options, RpcBackendOptions)
    assert (options.rpc_timeout, options.pause, options.limit) == (30.0, 3.0, 4.0)
    with pytest.raises(TypeError, match="rpc_timeout"):
        construct(init_method="env://")


def test_an_unknown_option_is_refused_with_the_nearest() -> None:
    for call in (lambda: Options(pauze=1), lambda: construct(1.0, "env://", pauze=1)):  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"has no option 'pauze'\. Did you mean 'pause'"):
            call()


@pytest.mark.parametrize(("value", "error"), [("1", TypeError), (11, ValueError), (-1, ValueError)])
def test_a_wrong_value_is_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"pause=.*{value}.*MADE_UP needs"):
        Options(pause=value)


def test_option_then_variable_then_default_counts() -> None:
    pause = Options.pause

    assert pause.resolve(Options(pause=3), {VARIABLE: "2"}) == 3
    assert pause.resolve(Options(), {VARIABLE: " 2 "}) == 2
    assert pause.resolve(None, {VARIABLE: ""}) == 1.5
    assert pause.find(Options(pause=3), {}) == (3, "the option pause=3.0")
    assert pause.find(None, {VARIABLE: "2"}) == (2, f"{VARIABLE}=2")
    with pytest.raises(SettingError, match=f"{VARIABLE}='soon' is not a number of seconds from 0"):
        pause.resolve(None, {VARIABLE: "soon"})


def test_native_options_are_passed_by_their_native_names() -> None:
    values = Options(careful=True).native({VARIABLE: "2"})

    assert values == {"max_message": 16 << 30, "pause": 2.0, "asks_twice": True}


def test_a_subclass_has_its_own_variables() -> None:
    assert "RPC_BACKENDS_MADE_UP_PAUSE" in Options.variables()
    assert EngineOptions.variables() == {}


def test_a_subclass_may_have_its_own_constructor() -> None:
    class Careful(Options):
        def __init__(self, limit: float) -> None:
            super().__init__(limit=limit, careful=True)

    options = Careful(limit=7)
    assert (options.limit, options.careful, options.BACKEND) == (7, True, "MADE_UP")


def test_only_torchs_two_options_can_be_changed() -> None:
    options = Options()
    options.rpc_timeout = 5

    assert options.rpc_timeout == 5
    with pytest.raises(AttributeError, match="limit cannot be changed on existing MADE_UP options"):
        options.limit = 3
