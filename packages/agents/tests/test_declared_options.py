"""An option of an engine is declared once, and everything else follows from the declaration."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from torch.distributed import HashStore
from torch.distributed.rpc import RpcBackendOptions

from rpc_backends_agents.engine import (
    INTEGER,
    PATH,
    YES_OR_NO,
    DeclaredOptions,
    EngineOptions,
    GuardedOptions,
    Kind,
    Option,
    VariableOption,
    construct_handler,
    init_handler,
    integer,
    seconds,
)
from rpc_backends_agents.engine.variables import warn_of_unknown
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


def test_an_option_cannot_be_deleted() -> None:
    options = Options(limit=4)
    with pytest.raises(AttributeError, match="limit cannot be deleted from MADE_UP options"):
        del options.limit

    assert options.limit == 4


@pytest.mark.parametrize(
    ("variable", "hint"),
    [("PAUZE", f"Did you mean {VARIABLE}?"), ("XYZZY", f"It uses {VARIABLE}, ")],
)
def test_a_start_warns_of_an_unknown_variable(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str, hint: str
) -> None:
    def make_transport(_options: Options, _group: Any) -> Any:
        raise ConnectionError("this transport does not start")

    monkeypatch.setenv(f"RPC_BACKENDS_MADE_UP_{variable}", "1")
    init = init_handler(Options, make_transport)
    with (
        caplog.at_level("WARNING", "rpc_backends.made_up"),
        pytest.raises(ConnectionError, match="does not start"),
    ):
        init(HashStore(), "a", 0, 1, Options())

    (message,) = [
        record.getMessage() for record in caplog.records if record.name == "rpc_backends.made_up"
    ]
    assert (
        f"does not use the environment variable RPC_BACKENDS_MADE_UP_{variable}. {hint}" in message
    )


def test_a_start_of_an_engine_without_variables_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RPC_BACKENDS_PLAIN_PAUSE", "1")
    warn_of_unknown("PLAIN", ())

    assert caplog.messages[-1].endswith("variable RPC_BACKENDS_PLAIN_PAUSE. It uses none.")


def test_a_subclass_may_change_a_default() -> None:
    class Patient(Options):
        rpc_timeout: float = Option(
            EngineOptions.DECLARED["rpc_timeout"].kind, default=90.0, meaning="seconds for a call"
        )  # type: ignore[assignment]
        limit: Option[float, int | float] = Option(
            Options.limit.kind, default=9, meaning="seconds that a peer may take"
        )

    assert (Patient().rpc_timeout, Patient().limit, Options().limit) == (90, 9, 2)


def test_an_integer_may_come_from_a_variable() -> None:
    class Sized(EngineOptions):
        BACKEND = "SIZED"
        size: VariableOption[int] = VariableOption(INTEGER, default=7, meaning="its size")

    variable = Sized.size.variable
    assert [Sized.size.resolve(None, {variable: text}) for text in ("", "3")] == [7, 3]
    for text in ("0", "1.5", "-1", "1_0", str(2**62)):
        with pytest.raises(
            SettingError, match=f"{variable}='{text}' is not an integer from 1 to 2"
        ):
            Sized.size.resolve(None, {variable: text})


def test_the_default_of_a_variable_is_what_its_kind_makes_of_it() -> None:
    def check(_checks: Any, _name: str, value: Any) -> tuple[str, ...]:
        return tuple(value.split(",")) if isinstance(value, str) else value

    class Named(EngineOptions):
        BACKEND = "NAMED"
        names: VariableOption[tuple[str, ...], str] = VariableOption(
            Kind(check, "names", lambda _variable, text: tuple(text.split(","))),
            default="a,b",
            meaning="its names",
        )

    assert Named.names.resolve(None, {}) == ("a", "b")


@pytest.mark.parametrize(
    ("make", "text"), [(seconds, "seconds(5, 1) has no value"), (integer, "integer(5, 1) has no")]
)
def test_limits_of_a_kind_are_in_order(make: Any, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        make(5, 1)


def option(kind: Any = INTEGER, default: Any = 1, meaning: Any = "its size", **more: Any) -> Any:
    return Option(kind, default=default, meaning=meaning, **more)


def variable_option(kind: Any = INTEGER, default: Any = None, **more: Any) -> Any:
    return VariableOption(kind, default=default, meaning="its size", **more)


NO_READ: Kind[Any] = Kind(lambda _checks, _name, value: value, "anything")


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        (
            {"x": option(default=0)},
            "x: default=0 is out of range; BAD needs an integer from 1 to 2",
        ),
        (
            {"x": option(seconds(0, 5), 99.0)},
            "x: default=99.0 is out of range; BAD needs 0 to 5 sec",
        ),
        ({"x": variable_option(seconds(0, 5), 99.0)}, "x: default=99.0 is out of range"),
        ({"x": option(default="1")}, "x: default='1' is of type str; BAD needs an int"),
        ({"x": option(default=None)}, "x: default=None is of type NoneType"),
        (
            {"x": option(NO_READ, [])},
            "x: all instances would share default=[]; use None or a tuple",
        ),
        ({"x": option(kind=int)}, "x: <class 'int'> is not a Kind; use one such as INTEGER"),
        ({"x": option(meaning="")}, "x: the meaning, '', must be a text without a full stop"),
        ({"x": option(meaning="Size.")}, "x: the meaning, 'Size.', must be"),
        ({"x": option(Kind(INTEGER.check, ""))}, "x: the kind's values, '', must be"),
        ({"x": variable_option(NO_READ)}, "x: its kind cannot read a variable; give it a read"),
        ({"x": option(native="a b")}, "x: native='a b' is no keyword; use True, or the name"),
        ({"x": option(native="")}, "x: native='' is no keyword"),
        ({"x": option(native="max_message")}, "x: the option max_message_bytes uses max_message"),
        (
            {"x": option(native="n"), "n": option(native=True)},
            "n: the option x uses n already; choose another name",
        ),
        ({"x": variable_option(also=("not a var",))}, "x: also=('not a var',) is no tuple of var"),
        ({"x": variable_option(also="UCX_TLS")}, "x: also='UCX_TLS' is no tuple of variables"),
        (
            {"x": variable_option(also=("RPC_BACKENDS_BAD_SECRET",))},
            "x: also has RPC_BACKENDS_BAD_SECRET, which secret uses; leave it out",
        ),
        (
            {"x": variable_option(), "X": variable_option()},
            "X: the option x uses RPC_BACKENDS_BAD_X",
        ),
        ({"native": option()}, "native: GuardedOptions uses this name for something else; choose"),
        (
            {"set_devices": option()},
            "set_devices: GuardedOptions uses this name for something else",
        ),
        ({"secret": option()}, "secret: GuardedOptions uses this name for something else"),
        ({"secret": variable_option(PATH)}, "secret: GuardedOptions has this option with another"),
        ({"_x": option()}, "_x: a program cannot pass an option of this name"),
        ({"self": option()}, "self: a program cannot pass an option of this name"),
        (
            {"BACKEND": ""},
            "BACKEND: '' is not the name of a backend; set the name, or pass base=True",
        ),
        *(
            (
                {"BACKEND": name},
                f"BACKEND: '{name}' is not the name of a backend; write it with capital letters",
            )
            for name in ("my backend", "low", "2ND")
        ),
        (
            {"__annotations__": {"x": "engine.VariableOption[int]"}},
            "x: the value is missing; write x: VariableOption[TYPE] = VariableOption(...)",
        ),
        ({"__annotations__": {"x": Option[int]}}, "x: the value is missing; write x: Option[TYPE]"),
        (
            {"x": option(), "__annotations__": {}},
            "x: the annotation is missing; write x: Option[TYPE]",
        ),
        (
            {"x": option(), "__annotations__": {"x": "engine.VariableOption[int]"}},
            "x: the annotation says VariableOption, and the value is of Option; write x: Option[TYPE]",
        ),
        (
            {"x": variable_option(), "__annotations__": {"x": Option[int]}},
            "x: the annotation says Option, and the value is of VariableOption; write x: VariableOption",
        ),
        (
            {"x": 3, "__annotations__": {"x": "int"}},
            "x: it is no option; write x: Option[TYPE] = Option(...), or a ClassVar",
        ),
    ],
)
def test_a_wrong_declaration_is_an_error_of_the_class(declared: dict[str, Any], text: str) -> None:
    names = {
        name: f"{type(value).__name__}[int]" if isinstance(value, Option) else "ClassVar[str]"
        for name, value in declared.items()
    }

    with pytest.raises(TypeError, match=re.escape(f"Bad.{text}")):
        type("Bad", (GuardedOptions,), {"BACKEND": "BAD", "__annotations__": names, **declared})


def test_options_need_those_of_torch() -> None:
    with pytest.raises(
        TypeError, match=r"Bad\.rpc_timeout: the option is missing; derive the class"
    ):
        type("Bad", (DeclaredOptions,), {"BACKEND": "BAD"})
