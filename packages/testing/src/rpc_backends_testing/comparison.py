"""Compares two values bit by bit, and describes how they differ."""

from __future__ import annotations

import dataclasses
import reprlib
import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch


class Difference(NamedTuple):
    """The first difference between two values, in words."""

    expected: str
    got: str


def describe(value: Any) -> str:
    """Return a short text for a value: the properties of a tensor, or a shortened repr."""
    if isinstance(value, torch.Tensor):
        return _describe_tensor(value)
    if isinstance(value, list | tuple) and any(isinstance(each, torch.Tensor) for each in value):
        shown = ", ".join(describe(each) for each in value[:3])
        more = f", and {len(value) - 3} more" if len(value) > 3 else ""
        return f"{type(value).__name__} of {shown}{more}"
    short = _Short()
    short.maxstring = short.maxother = 120
    return short.repr(value)


class _Short(reprlib.Repr):
    """Shortens values, and describes tensors by their properties."""

    def repr_instance(self, x: Any, level: int) -> str:
        return (
            _describe_tensor(x) if isinstance(x, torch.Tensor) else super().repr_instance(x, level)
        )


def difference(  # noqa: PLR0911 - one return for each kind of value
    want: Any, got: Any, where: str = ""
) -> Difference | None:
    """Return how ``got`` differs from ``want``, None if it does not.

    Types must be equal. Tensors must also have equal dtype, shape, layout, device, ``requires_grad`` and
    bits, including NaN payloads and the sign of zero. Strides are not compared.

    :param where: the place of the value in its container, for the text.
    """
    if type(want) is not type(got):
        return Difference(
            f"{_at(where)}{type(want).__name__}: {describe(want)}",
            f"{_at(where)}{type(got).__name__}: {describe(got)}",
        )
    if isinstance(want, torch.Tensor):
        return _tensor_difference(want, got, where)
    if isinstance(want, list | tuple):
        return _sequence_difference(want, got, where)
    if isinstance(want, Mapping):
        if list(want) != list(got):
            return _plain(list(want), list(got), f"{where} keys")
        return _first((f"{where}[{key!r}]", want[key], got[key]) for key in want)
    if dataclasses.is_dataclass(want) and not isinstance(want, type):
        names = [field.name for field in dataclasses.fields(want)]
        return _first(
            (f"{where}.{name}", getattr(want, name), getattr(got, name)) for name in names
        )
    same = _bits(want) == _bits(got) if isinstance(want, float | complex) else want == got
    return None if same else _plain(want, got, where)


def _first(pairs: Iterable[tuple[str, Any, Any]]) -> Difference | None:
    """Return the first difference among parts: triples of place, expected and actual value."""
    return next((d for where, want, got in pairs if (d := difference(want, got, where))), None)


def _bits(number: complex) -> bytes:
    """Return the bits of a number, so that NaN equals itself and -0.0 differs from 0.0."""
    return struct.pack("dd", number.real, number.imag)


def _sequence_difference(want: Any, got: Any, where: str) -> Difference | None:
    if len(want) != len(got):
        return Difference(
            f"{_at(where)}{len(want)} elements: {describe(want)}",
            f"{_at(where)}{len(got)} elements: {describe(got)}",
        )
    pairs = (
        (f"{where}[{index}]", w, g) for index, (w, g) in enumerate(zip(want, got, strict=True))
    )
    return next((d for place, w, g in pairs if (d := difference(w, g, place))), None)


def _tensor_difference(want: torch.Tensor, got: torch.Tensor, where: str) -> Difference | None:
    for name in ("dtype", "shape", "layout", "device", "requires_grad"):
        wanted, actual = getattr(want, name), getattr(got, name)
        if wanted != actual:
            if name == "shape":
                wanted, actual = tuple(wanted), tuple(actual)
            return Difference(
                f"{_at(where)}a tensor of {name} {wanted}", f"{_at(where)}{name} {actual}"
            )
    if want.layout is torch.sparse_coo:
        if want.is_coalesced() != got.is_coalesced():
            return _plain(want.is_coalesced(), got.is_coalesced(), f"{where} is_coalesced()")
        parts: tuple[str, ...] = ("_indices", "_values")
    elif want.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = ("crow_indices", "col_indices", "values")
    elif want.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = ("ccol_indices", "row_indices", "values")
    else:
        return _dense_difference(want, got, where)
    return _first(
        (f"{where}.{name}()", getattr(want, name)(), getattr(got, name)()) for name in parts
    )


def _dense_difference(want: torch.Tensor, got: torch.Tensor, where: str) -> Difference | None:
    if want.is_quantized:
        if want.qscheme() != got.qscheme():
            return _plain(want.qscheme(), got.qscheme(), f"{where}.qscheme()")
        if want.qscheme() is torch.per_tensor_affine:
            want_scale, got_scale = ((each.q_scale(), each.q_zero_point()) for each in (want, got))
            if want_scale != got_scale:
                return _plain(want_scale, got_scale, f"{where} scale and zero point")
        return _dense_difference(want.int_repr(), got.int_repr(), f"{where}.int_repr()")
    wanted, actual = _bytes(want), _bytes(got)
    if torch.equal(wanted, actual):
        return None
    size = max(1, want.element_size())
    first = int((wanted != actual).nonzero()[0]) // size
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(first), want.shape or (1,)))
    count = int((wanted.view(-1, size) != actual.view(-1, size)).any(1).sum())
    place = f"{where}[{', '.join(map(str, index))}]" if want.dim() else f"{where} the value"
    left, right = (each[first * size : (first + 1) * size].tolist() for each in (wanted, actual))
    return Difference(
        f"{place.strip()} is {_element(want, first)} (bytes {bytes(left).hex(' ')})",
        f"{_element(got, first)} (bytes {bytes(right).hex(' ')}); "
        f"{count} of {want.numel()} elements differ",
    )


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if plain.numel() == 0:
        return torch.empty(0, dtype=torch.uint8)
    # Torch can copy quantized and some other dtypes, but cannot view them as bytes.
    size = plain.element_size()
    raw = torch.empty(0, dtype=torch.uint8)
    return raw.set_(  # type: ignore[no-any-return, call-overload]
        plain.untyped_storage(), plain.storage_offset() * size, (plain.numel() * size,)
    )


def _element(tensor: torch.Tensor, index: int) -> str:
    try:
        return str(tensor.detach().reshape(-1)[index].item())
    except (RuntimeError, NotImplementedError):
        return "a value"


def _describe_tensor(tensor: torch.Tensor) -> str:
    kind = "tensor" if type(tensor) is torch.Tensor else type(tensor).__name__
    parts = [str(tensor.dtype).removeprefix("torch."), f"shape {tuple(tensor.shape)}"]
    if tensor.layout is not torch.strided:
        parts.append(str(tensor.layout).removeprefix("torch."))
    elif not tensor.is_contiguous():
        parts.append(f"strides {tensor.stride()}")
    if tensor.requires_grad:
        parts.append("requires_grad")
    if tensor.device.type != "cpu":
        parts.append(str(tensor.device))
    return f"<{kind} {', '.join(parts)}>"


def _plain(want: Any, got: Any, where: str) -> Difference:
    return Difference(f"{_at(where)}{describe(want)}", f"{_at(where)}{describe(got)}")


def _at(where: str) -> str:
    return f"at {where.strip()}: " if where else ""
