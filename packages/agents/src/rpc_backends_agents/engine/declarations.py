"""Options that a class declares once each; signature, documentation, handler and variables follow."""

from __future__ import annotations

import ast
import copy
import inspect
import os
from collections.abc import Callable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Self,
    dataclass_transform,
    get_args,
    overload,
)

from torch.distributed.rpc import RpcBackendOptions
from typing_extensions import TypeVar

from rpc_backends_agents.engine import variables
from rpc_backends_agents.engine.declaration_checks import TORCHS, check_declarations
from rpc_backends_agents.engine.kinds import Kind
from rpc_backends_agents.engine.option_checks import OptionChecks
from rpc_backends_core.spi import check_option_names

T = TypeVar("T")
P = TypeVar("P", default=T)

_GIB = 1 << 30


class Option(Generic[T, P]):
    """The declaration of one option: ``name: Option[VALUE, PARAMETER] = Option(kind, ...)``.

    ``VALUE`` is the type of the attribute, and ``PARAMETER`` the type that a program passes; it can be
    left out if it is the same.

    :param kind: checks the value, and says in words which values are valid.
    :param default: what a program passes that leaves the option out.
    :param meaning: a sentence for the documentation, without a full stop.
    :param default_text: the default in words, if the value does not say it.
    :param native: whether the transport in C++ gets the option; or the name by which it gets it.
    """

    owner: type[DeclaredOptions]
    name: str
    also: tuple[str, ...] = ()

    def __init__(
        self,
        kind: Kind[T],
        *,
        default: P,
        meaning: str,
        default_text: str | None = None,
        native: bool | str = False,
    ) -> None:
        self.kind = kind
        self.default: Any = default
        self.meaning = meaning
        self.default_text = default_text
        self.native = native

    @property
    def parameter_default(self) -> Any:
        """The default of the parameter."""
        return self.default

    @property
    def default_in_words(self) -> str:
        """What counts if a program leaves the option out."""
        value = self.default
        if self.default_text is not None:
            return self.default_text
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, int) and value >= _GIB and not value % _GIB:
            return f"{value // _GIB} GiB"
        if isinstance(value, int | float):
            return f"{value:g}" if isinstance(value, float) else str(value)
        return "none" if value is None else f"``{value}``"

    @property
    def variable(self) -> str | None:
        """The environment variable of the option; None if it has none."""
        return None

    @property
    def native_name(self) -> str | None:
        """The name by which the transport in C++ gets the option; None if it does not."""
        return self.name if self.native is True else self.native or None

    def checked(self, value: Any) -> Any:
        """Check a value that a program has passed. :raises TypeError, ValueError: it is invalid."""
        return self.kind.check(OptionChecks(self.owner.BACKEND), self.name, value)

    def value_in(self, options: Any, _environ: Mapping[str, str]) -> Any:
        """Return the value that counts."""
        return getattr(options, self.name)

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Any:
        # An instance has the value in its dict, which takes precedence.
        return self

    if TYPE_CHECKING:
        # The type that the parameter of the class has.
        def __set__(self, instance: object, value: P) -> None: ...


class VariableOption(Option[T | None, P | None], Generic[T, P]):
    """An option with an environment variable, ``RPC_BACKENDS_<backend>_<option>``.

    The attribute is None if the program has not passed the option; :meth:`resolve` returns what counts.

    :param default: what counts if neither the program nor a variable gives a value.
    :param also: further variables that are read if that variable is not set.
    """

    def __init__(
        self,
        kind: Kind[T],
        *,
        default: T | P,
        meaning: str,
        default_text: str | None = None,
        native: bool | str = False,
        also: tuple[str, ...] = (),
    ) -> None:
        super().__init__(
            kind, default=None, meaning=meaning, default_text=default_text, native=native
        )
        self.default = default
        self.also = also

    @property
    def parameter_default(self) -> None:
        """None, which means that the program has not passed the option."""
        return

    @property
    def variable(self) -> str:
        """The environment variable of the option."""
        return f"{variables.prefix(self.owner.BACKEND)}{self.name.upper()}"

    def checked(self, value: Any) -> Any:
        """Check a value that a program has passed. :raises TypeError, ValueError: it is invalid."""
        return None if value is None else super().checked(value)

    def find(
        self, options: DeclaredOptions | None, environ: Mapping[str, str] = os.environ
    ) -> tuple[T, str]:
        """Return the value that counts, and what gives it, in words; this is empty for the default.

        :param options: None for default options.
        :raises SettingError: the value of a variable is invalid.
        """
        value: Any = None if options is None else options.__dict__[self.name]
        if value is not None:
            shown = list(value) if isinstance(value, tuple) else value
            return value, f"the option {self.name}={shown!r}"
        for variable in (self.variable, *self.also):
            text = variables.text(variable, environ)
            if text is not None:
                return self.kind.read(variable, text), f"{variable}={text}"  # type: ignore[return-value, misc]
        return self.default, ""

    def resolve(
        self, options: DeclaredOptions | None, environ: Mapping[str, str] = os.environ
    ) -> T:
        """Return the value that counts: from the program, from a variable, or the default.

        :param options: None for default options.
        :raises SettingError: the value of a variable is invalid.
        """
        return self.find(options, environ)[0]

    def value_in(self, options: Any, environ: Mapping[str, str]) -> Any:
        """Return the value that counts."""
        return self.resolve(options, environ)


@dataclass_transform(kw_only_default=True, field_specifiers=(Option, VariableOption))
class DeclaredOptions(RpcBackendOptions):
    """The base of a backend's options. A subclass declares each one as an :class:`Option`.

    An unknown option is an error that names the nearest one. As with torch's options, only
    ``rpc_timeout`` and ``init_method`` can be changed later, and the options cannot be pickled.

    A mistake in a declaration is a TypeError when the class is made.

    :param base: whether the class is only a base of the options of backends, without ``BACKEND``.
    :cvar BACKEND: the name of the backend.
    :cvar DECLARED: the options by name.
    """

    BACKEND: ClassVar[str] = ""
    DECLARED: ClassVar[dict[str, Option[Any, Any]]] = {}

    def __init_subclass__(cls, *, base: bool = False, **more: Any) -> None:
        """Make the signature, the documentation and the constructor of the subclass."""
        super().__init_subclass__(**more)
        own = {name: value for name, value in vars(cls).items() if isinstance(value, Option)}
        cls.DECLARED = {}
        for name, declared in {**cls.__base__.DECLARED, **own}.items():  # type: ignore[union-attr]
            option = copy.copy(declared)  # its owner gives the name of its variable
            option.owner, option.name = cls, name
            cls.DECLARED[name] = option
            if name not in TORCHS:
                setattr(cls, name, option)
            elif name in own:
                delattr(cls, name)  # the attribute is torch's
        annotations = inspect.get_annotations(cls)
        check_declarations(cls, own, annotations, base=base)
        for name in own:
            option = cls.DECLARED[name]
            if option.variable:
                option.default = option.checked(option.default)
        types = {name: _parameter_type(annotations[name]) for name in own}
        cls._TYPES = {**getattr(cls, "_TYPES", {}), **types}
        if "__init__" not in vars(
            cls
        ):  # a program may derive options with a constructor of its own
            cls.__init__ = _constructor(cls)  # type: ignore[method-assign]
        cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n\n{cls.parameters_in_words()}"

    _TYPES: ClassVar[dict[str, str]] = {}

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Make the options; :raises TypeError: an option is unknown."""
        check_option_names(cls.BACKEND, cls.__init__, kwargs)
        return super().__new__(cls, *args, **kwargs)

    @classmethod
    def check_together(cls, passed: dict[str, Any], checked: dict[str, Any]) -> None:
        """Check options that depend on each other, and complete them in ``checked``.

        :param passed: the values as the program has passed them, or the defaults.
        :param checked: the values of the attributes.
        :raises ValueError: the values do not go together.
        """

    @classmethod
    def signature(cls) -> inspect.Signature:
        """Return the signature of the class: each option is a keyword."""
        parameters = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=option.parameter_default,
                annotation=cls._TYPES[name]
                + (" | None" if option.variable and "None" not in cls._TYPES[name] else ""),
            )
            for name, option in cls.DECLARED.items()
        ]
        return inspect.Signature(parameters)

    @classmethod
    def parameters_in_words(cls) -> str:
        """Return a ``:param:`` line for each option, for a docstring."""
        return "\n".join(
            f":param {option.name}: {option.meaning}." for option in cls.DECLARED.values()
        )

    @classmethod
    def options_in_words(cls) -> dict[str, dict[str, str | None]]:
        """Return the default, the valid values and the variable of each option, for `show`."""
        return {
            name: {
                "default": option.default_in_words,
                "values": option.kind.values,
                "variable": option.variable,
            }
            for name, option in cls.DECLARED.items()
        }

    @classmethod
    def variables(cls) -> dict[str, str]:
        """Return each environment variable with its meaning."""
        return {
            option.variable: option.meaning for option in cls.DECLARED.values() if option.variable
        }

    def native(self, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
        """Return the values for the transport in C++, by the names that it uses.

        C++ has no defaults for these, so each default is in one place.

        :raises SettingError: the value of a variable is invalid.
        """
        return {
            option.native_name: option.value_in(self, environ)
            for option in self.DECLARED.values()
            if option.native_name
        }

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in TORCHS:
            raise AttributeError(
                f"{name} cannot be changed on existing {self.BACKEND} options; pass it when you create "
                "them. Only rpc_timeout and init_method can be changed."
            )
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        raise AttributeError(
            f"{name} cannot be deleted from {self.BACKEND} options; create options without it instead."
        )

    def __repr__(self) -> str:
        shown = {"rpc_timeout": self.rpc_timeout, "init_method": self.init_method, **self.__dict__}
        values = ", ".join(
            f"{name}={value!r}" for name, value in shown.items() if value is not None
        )
        return f"{type(self).__name__}({values})"


def _constructor(cls: type[DeclaredOptions]) -> Any:
    defaults = {name: option.parameter_default for name, option in cls.DECLARED.items()}

    def __init__(self: DeclaredOptions, **options: Any) -> None:  # noqa: N807
        passed = {**defaults, **options}
        checked = {name: cls.DECLARED[name].checked(value) for name, value in passed.items()}
        cls.check_together(passed, checked)
        RpcBackendOptions.__init__(self, **{name: checked.pop(name) for name in TORCHS})
        self.__dict__.update(checked)

    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = cls.signature()
    __init__.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[me, *signature.parameters.values()]
    )
    __init__.__module__ = cls.__module__
    __init__.__qualname__ = f"{cls.__qualname__}.__init__"
    return __init__


def _parameter_type(annotation: Any) -> str:
    """Return ``P`` of the annotation ``Option[T, P]``, as it is written in the source."""
    if not isinstance(annotation, str):  # in a module without `from __future__ import annotations`
        given = [argument for argument in get_args(annotation) if not isinstance(argument, TypeVar)]
        return inspect.formatannotation(given[-1] if given else annotation)
    node = ast.parse(annotation, mode="eval").body
    if not isinstance(node, ast.Subscript) or "Option" not in ast.unparse(node.value):
        return annotation
    types = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return ast.unparse(types[-1])


Options = TypeVar("Options", bound=DeclaredOptions)


def construct_handler(options_type: type[Options]) -> Callable[..., Options]:
    """Return the handler with which torch constructs the options; :class:`Backend` needs it.

    Torch passes ``rpc_timeout`` and ``init_method``, which have no default there.
    """
    parameters = options_type.signature().parameters
    empty, kind = inspect.Parameter.empty, inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature(
        [
            *(parameters[name].replace(default=empty, kind=kind) for name in TORCHS),
            *(p.replace(kind=kind) for name, p in parameters.items() if name not in TORCHS),
        ],
        return_annotation=options_type.__name__,
    )

    def construct_rpc_backend_options(*args: Any, **kwargs: Any) -> Options:
        check_option_names(options_type.BACKEND, options_type.__init__, kwargs)
        return options_type(**signature.bind(*args, **kwargs).arguments)

    construct_rpc_backend_options.__signature__ = signature  # type: ignore[attr-defined]
    construct_rpc_backend_options.__module__ = options_type.__module__
    construct_rpc_backend_options.__qualname__ = construct_rpc_backend_options.__name__
    construct_rpc_backend_options.__doc__ = (
        "Construct the options of one worker, without opening or starting anything. Torch calls this.\n\n"
        f"{options_type.parameters_in_words()}\n"
        ":raises TypeError: an option has the wrong type, or is unknown.\n"
        ":raises ValueError: an option has an invalid value.\n"
        ":raises RuntimeError: torch knows no such device."
    )
    return construct_rpc_backend_options
