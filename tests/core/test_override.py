"""Which backend `RPC_BACKENDS_OVERRIDE` starts, and how it converts the program's options."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed import rpc

from core.kit import Children, Site, calls
from rpc_backends_core import _api as api
from rpc_backends_core import _patches as patches
from rpc_backends_core._backend_type import BackendType
from rpc_backends_core._default_registry import default_registry
from rpc_backends_core._errors import SettingError
from rpc_backends_core._registry import Registry
from rpc_backends_core._resolve import resolve_start
from rpc_backends_core._settings import Settings

B: Any = BackendType
VARIABLE = "RPC_BACKENDS_OVERRIDE"
TensorPipeOptions: Any = rpc.TensorPipeRpcBackendOptions
MAPS = {"worker1": {"cuda:0": "cuda:1"}}


class Options(rpc.RpcBackendOptions):
    """The options of MINE; they keep the arguments of its handler."""

    def __init__(self, rpc_timeout: float, init_method: str, **given: Any) -> None:
        super().__init__(rpc_timeout, init_method)
        self.given = given


def init(store: Any, name: Any, rank: Any, world_size: Any, rpc_backend_options: Any) -> Any:
    raise AssertionError("this backend was initialised")


def only_common(rpc_timeout: float, init_method: str) -> Any:
    return Options(rpc_timeout, init_method)


def with_threads(rpc_timeout: float, init_method: str, num_worker_threads: int = 4) -> Any:
    return Options(rpc_timeout, init_method, num_worker_threads=num_worker_threads)


def convert(options: Any, construct: Callable[..., Any] = with_threads) -> Any:
    """Convert ``options`` to those of a backend MINE whose handler is ``construct``."""
    if not api.backend_registered("MINE"):
        api.register_backend("MINE", construct, init)
    settings = Settings(default=None, override="MINE", join_timeout=1.0)
    return resolve_start("MINE", options, settings).options


def backend_for(backend: Any, options: Any) -> Any:
    """Return the backend member that a start with these arguments uses."""
    return B[resolve_start(backend, options, Settings.from_environment()).name]


@pytest.fixture(autouse=True)
def installed(with_torchs: Registry) -> None:
    patches.install()


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, str]]]:
    """Return a function that returns the package's log, as pairs of level and text."""
    caplog.set_level(logging.INFO, "rpc_backends")
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


# --- which backend ---------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [None, "", "  "])
def test_an_unset_or_empty_variable_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    if text is not None:
        monkeypatch.setenv(VARIABLE, text)
    api.register_backend("MINE", only_common, init)
    given = TensorPipeOptions()
    for backend in ("TENSORPIPE", "MINE"):
        resolved = resolve_start(backend, given, Settings.from_environment())
        assert resolved.name == backend
        assert resolved.options is given


@pytest.mark.parametrize("name", ["PIGEON", "pigeon", " Pigeon "])
@pytest.mark.parametrize(
    "ask",
    [
        lambda: ("TENSORPIPE", None),
        lambda: (B.TENSORPIPE, None),
        lambda: (None, TensorPipeOptions()),
        lambda: (B.TENSORPIPE, TensorPipeOptions()),
        lambda: (None, None),
    ],
    ids=["name", "member", "options", "member and options", "nothing"],
)
def test_it_overrides_everything_that_a_program_passes(
    site: Site, monkeypatch: pytest.MonkeyPatch, name: str, ask: Callable[[], tuple[Any, Any]]
) -> None:
    site.add_backend("PIGEON")
    monkeypatch.setenv(VARIABLE, name)
    assert backend_for(*ask()) is B.PIGEON


def test_it_wins_over_the_default(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add_backend("PIGEON")
    monkeypatch.setenv(VARIABLE, "PIGEON")
    monkeypatch.setenv("RPC_BACKENDS_DEFAULT", "TYPO")
    assert backend_for(None, None) is B.PIGEON


def test_the_named_backend_need_not_be_installed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_backend("PIGEON")
    monkeypatch.setenv(VARIABLE, "PIGEON")
    assert backend_for("CARRIER", None) is B.PIGEON


@pytest.mark.parametrize("backend", [3, object(), ["TENSORPIPE"]])
def test_a_backend_of_a_wrong_type_is_still_refused(
    monkeypatch: pytest.MonkeyPatch, backend: Any
) -> None:
    monkeypatch.setenv(VARIABLE, "TENSORPIPE")
    with pytest.raises(TypeError, match="Argument backend must be a member of BackendType"):
        backend_for(backend, None)


def test_a_misspelt_name_is_an_error_with_suggestions(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_backend("PIGEON")
    monkeypatch.setenv(VARIABLE, "PIGOEN")
    with pytest.raises(SettingError) as caught:
        backend_for("TENSORPIPE", None)
    text = str(caught.value)
    assert "RPC_BACKENDS_OVERRIDE='PIGOEN'" in text
    assert "Did you mean 'PIGEON'?" in text
    assert "TENSORPIPE, PIGEON" in text


def test_a_denied_backend_names_the_denying_variable(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_backend("PIGEON")
    monkeypatch.setenv(VARIABLE, "PIGEON")
    monkeypatch.setenv("RPC_BACKENDS_DENY", "PIGEON")
    with pytest.raises(SettingError, match=r"RPC_BACKENDS_OVERRIDE='PIGEON': .*RPC_BACKENDS_DENY"):
        backend_for("TENSORPIPE", None)


def test_a_broken_backend_is_an_error_with_its_cause(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add_backend("PIGEON", "raise OSError('no wings')")
    monkeypatch.setenv(VARIABLE, "PIGEON")
    with pytest.raises(
        SettingError, match=r"RPC_BACKENDS_OVERRIDE='PIGEON': .*no wings.*reinstall"
    ) as caught:
        backend_for("TENSORPIPE", None)
    assert isinstance(caught.value.__cause__, OSError)


def test_a_conflict_names_both_packages(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add("dist-a", backends={"PIGEON": "a:X"})
    site.add("dist-b", backends={"PIGEON": "b:X"})
    monkeypatch.setenv(VARIABLE, "PIGEON")
    with pytest.raises(SettingError, match=r"RPC_BACKENDS_OVERRIDE.*dist-a.*dist-b"):
        backend_for("TENSORPIPE", None)


@pytest.mark.parametrize(
    ("ask", "asked"),
    [
        (lambda: ("TENSORPIPE", None), "asked for TENSORPIPE"),
        (lambda: (B.TENSORPIPE, TensorPipeOptions()), "asked for TENSORPIPE"),
        (lambda: (None, TensorPipeOptions()), "the backend of its TensorPipeRpcBackendOptions"),
        (lambda: (None, None), "asked for no backend"),
    ],
    ids=["name", "member", "options", "nothing"],
)
def test_one_log_line_names_both_backends(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    logged: Callable[[], list[tuple[str, str]]],
    ask: Callable[[], tuple[Any, Any]],
    asked: str,
) -> None:
    site.add_backend("PIGEON")
    monkeypatch.setenv(VARIABLE, "PIGEON")
    backend_for(*ask())
    ((level, text),) = logged()
    assert level == "INFO"
    assert text.startswith("RPC_BACKENDS_OVERRIDE: ")
    assert asked in text
    assert text.endswith("starting PIGEON")


def test_naming_the_same_backend_logs_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch, logged: Callable[[], list[tuple[str, str]]]
) -> None:
    site.add_backend("PIGEON")
    monkeypatch.setenv(VARIABLE, "PIGEON")
    assert backend_for("pigeon", None) is B.PIGEON
    assert logged() == []


# --- options that both backends have ---------------------------------------------------------------


def test_timeout_init_method_and_threads_are_carried_over() -> None:
    made = convert(
        TensorPipeOptions(rpc_timeout=7.5, init_method="file:///there", num_worker_threads=3)
    )
    assert type(made) is Options
    assert (made.rpc_timeout, made.init_method) == (7.5, "file:///there")
    assert made.given == {"num_worker_threads": 3}


def test_the_default_number_of_threads_is_carried_over() -> None:
    assert convert(TensorPipeOptions()).given == {"num_worker_threads": 16}


def test_options_without_threads_use_the_backends_number() -> None:
    assert convert(rpc.RpcBackendOptions(5, "file:///there")).given == {"num_worker_threads": 4}


def test_an_infinite_timeout_is_carried_over() -> None:
    assert convert(TensorPipeOptions(rpc_timeout=0)).rpc_timeout == 0


def test_dropping_a_set_number_of_threads_is_a_warning(
    logged: Callable[[], list[tuple[str, str]]],
) -> None:
    convert(TensorPipeOptions(), only_common)
    assert logged() == []
    convert(TensorPipeOptions(num_worker_threads=3), only_common)
    ((level, text),) = logged()
    assert level == "WARNING"
    assert "MINE runs without num_worker_threads" in text


@pytest.mark.parametrize("kind", [Options, type("Derived", (Options,), {})])
def test_options_of_the_same_backend_are_passed_unchanged(kind: type) -> None:
    api.register_backend("MINE", with_threads, init)
    options = kind(5, "env://")
    assert convert(options) is options


def test_the_base_class_of_options_is_converted_too() -> None:
    api.register_backend("MINE", rpc.RpcBackendOptions, init)
    options = TensorPipeOptions(rpc_timeout=5)
    made = convert(options)
    assert type(made) is rpc.RpcBackendOptions
    assert made.rpc_timeout == 5
    assert convert(made) is made


def test_a_handler_with_kwargs_gets_only_named_parameters() -> None:
    def construct(
        rpc_timeout: float, init_method: str, *, num_worker_threads: int = 4, **more: Any
    ) -> Any:
        return Options(rpc_timeout, init_method, num_worker_threads=num_worker_threads, **more)

    made = convert(TensorPipeOptions(num_worker_threads=3, _transports=["uv"]), construct)
    assert made.given == {"num_worker_threads": 3}


def test_a_handler_without_a_signature_gets_two_arguments() -> None:
    handler = rpc.RpcBackendOptions  # written in C++
    with pytest.raises(ValueError, match="no signature"):
        inspect.signature(handler)
    made = convert(TensorPipeOptions(rpc_timeout=5, num_worker_threads=3), handler)
    assert made.rpc_timeout == 5


def test_timeout_and_init_method_are_passed_by_position() -> None:
    def construct(seconds: float, url: str, num_worker_threads: int = 4) -> Any:
        return Options(seconds, url, num_worker_threads=num_worker_threads)

    made = convert(
        TensorPipeOptions(rpc_timeout=5, init_method="file:///x", num_worker_threads=2), construct
    )
    assert (made.rpc_timeout, made.init_method) == (5, "file:///x")
    assert made.given == {"num_worker_threads": 2}


def test_a_missing_required_option_raises_the_handlers_error() -> None:
    def construct(rpc_timeout: float, init_method: str, certificate: str) -> Any:
        raise AssertionError("not reached")

    with pytest.raises(TypeError, match="certificate"):
        convert(TensorPipeOptions(), construct)


def test_options_are_constructed_through_the_hooks(site: Site) -> None:
    module = site.add_hooks(
        "noting",
        """
        @hookimpl
        def rpc_backends_construct_options(backend, rpc_timeout, options):
            CALLS.append((backend, rpc_timeout, dict(options)))
        """,
    )
    with_declared_type(with_threads)
    convert(TensorPipeOptions(rpc_timeout=5, num_worker_threads=3))
    assert calls(module) == [("MINE", 5.0, {"num_worker_threads": 3})]


def with_declared_type(construct: Callable[..., Any]) -> None:
    """Register MINE with a known options type, so that no options are constructed to find the type."""
    api.register_backend("MINE", construct, init)
    registry = default_registry()
    registry.learn_options_type(registry.find("MINE"), Options)


# --- options that the new backend does not have ----------------------------------------------------


def test_transports_and_channels_are_dropped_with_one_warning(
    logged: Callable[[], list[tuple[str, str]]],
) -> None:
    made = convert(TensorPipeOptions(_transports=["uv"], _channels=["basic"]))
    ((level, text),) = logged()
    assert level == "WARNING"
    assert "MINE runs without _transports, _channels" in text
    assert "TensorPipeRpcBackendOptions" in text
    assert made.given == {"num_worker_threads": 16}


def test_options_at_their_defaults_cause_no_warning(
    logged: Callable[[], list[tuple[str, str]]],
) -> None:
    convert(TensorPipeOptions(device_maps={}, devices=[], _transports=None, _channels=None))
    assert logged() == []


def test_dropped_options_of_a_subclass_are_named(
    logged: Callable[[], list[tuple[str, str]]],
) -> None:
    class Slow(TensorPipeOptions):  # type: ignore[misc]  # made Any above
        def __init__(self, **options: Any) -> None:
            super().__init__(_transports=["uv"], **options)

    convert(Slow())
    assert "MINE runs without _transports," in logged()[0][1]


def test_dropped_fault_options_are_named(
    logged: Callable[[], list[tuple[str, str]]],
) -> None:
    from torch.distributed.rpc._testing import FaultyTensorPipeRpcBackendOptions as Faulty

    plain = {"num_worker_threads": 2, "rpc_timeout": 5, "init_method": "env://"}
    none = {"messages_to_fail": [], "messages_to_delay": {}, "num_fail_sends": 0}
    assert convert(Faulty(**plain, **none)).given == {"num_worker_threads": 2}
    assert logged() == []
    some = {"messages_to_fail": ["PYTHON_CALL"], "messages_to_delay": {}, "num_fail_sends": 3}
    convert(Faulty(**plain, **some))
    assert "MINE runs without messages_to_fail, num_fail_sends," in logged()[0][1]


class Guarded(rpc.RpcBackendOptions):
    """The options of a third backend."""

    def __init__(
        self, *, secret: str = "", level: int = 3, colour: str = "red", num_worker_threads: int = 8
    ) -> None:
        super().__init__(5, "file:///there")
        self.secret = secret
        self.level = level
        self.colour = colour
        self.num_worker_threads = num_worker_threads
        self._cache = {"some": "thing"}

    @property
    def is_open(self) -> bool:
        return not self.secret


def test_only_options_that_differ_from_defaults_are_named(
    logged: Callable[[], list[tuple[str, str]]],
) -> None:
    made = convert(Guarded(secret="", level=0))
    assert (made.rpc_timeout, made.init_method) == (5, "file:///there")
    assert made.given == {"num_worker_threads": 8}
    assert "MINE runs without level," in logged()[0][1]


def test_the_warning_shows_no_values(
    logged: Callable[[], list[tuple[str, str]]],
) -> None:
    convert(Guarded(secret="open sesame"))
    ((_, text),) = logged()
    assert "MINE runs without secret," in text
    assert "sesame" not in text


def test_options_with_equal_names_are_carried_over() -> None:
    def construct(
        rpc_timeout: float, init_method: str, level: int = 1, colour: str = "blue"
    ) -> Any:
        return Options(rpc_timeout, init_method, level=level, colour=colour)

    assert convert(Guarded(level=7), construct).given == {"level": 7, "colour": "blue"}


# --- devices ---------------------------------------------------------------------------------------


def test_device_maps_are_refused_with_a_remedy(
    logged: Callable[[], list[tuple[str, str]]],
) -> None:
    with pytest.raises(ValueError, match="RPC_BACKENDS_OVERRIDE") as caught:
        convert(TensorPipeOptions(device_maps=MAPS, _transports=["uv"]))
    text = str(caught.value)
    assert "device_maps={'worker1': {'cuda:0': 'cuda:1'}}" in text
    assert "MINE does not support devices or device maps" in text
    assert "Remove device_maps from the options, or unset RPC_BACKENDS_OVERRIDE." in text
    assert logged() == []


def test_device_maps_set_after_construction_are_refused_too() -> None:
    options = TensorPipeOptions()
    options.set_device_map("worker1", {"cuda:0": "cuda:0"})
    with pytest.raises(ValueError, match=r"device_maps=\{'worker1': \{'cuda:0': 'cuda:0'\}\}"):
        convert(options)


def test_devices_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"set devices=\['cuda:0', 'cuda:1'\]\. MINE .*Remove devi"
    ):
        convert(TensorPipeOptions(devices=["cuda:0", "cuda:1"]))


def test_a_backend_with_device_maps_gets_them() -> None:
    def construct(
        rpc_timeout: float, init_method: str, device_maps: Any = None, devices: Any = None
    ) -> Any:
        return Options(rpc_timeout, init_method, device_maps=device_maps, devices=devices)

    made = convert(TensorPipeOptions(device_maps=MAPS, devices=["cuda:0"]), construct)
    cuda0, cuda1 = torch.device("cuda:0"), torch.device("cuda:1")
    assert made.given == {"device_maps": {"worker1": {cuda0: cuda1}}, "devices": [cuda0]}


# --- torch's class of options ----------------------------------------------------------------------


def test_torchs_options_class_behaves_as_before(children: Children) -> None:
    children.run(
        """
        import inspect
        from torch.distributed import rpc
        from rpc_backends_core import _patches as patches

        kind = rpc.TensorPipeRpcBackendOptions
        init = kind.__init__
        def refusals():
            for arguments, more in (((3,), {}), ((), {"_transports": 3})):
                try:
                    kind(*arguments, **more)
                except TypeError as error:
                    yield str(error)
        before = inspect.signature(kind), list(refusals())
        patches.install()
        assert kind.__init__ is not init
        assert (inspect.signature(kind), list(refusals())) == before
        assert len(before[1]) == 2
        assert vars(kind(num_worker_threads=3, rpc_timeout=5)) == {}
        try:
            kind(colour=1)
        except TypeError as error:
            text = str(error)
        assert text.startswith("TENSORPIPE has no option 'colour'"), text
        assert "num_worker_threads" in text
        patches.uninstall()
        assert kind.__init__ is init
        """
    )
