"""Backends that break the chapter `data`."""

from __future__ import annotations

import torch

from rpc_broken_backends import Broken
from rpc_broken_backends.seams import on_tensors, once, tensorpipe

_MANY = 1 << 20


def lose_bfloat16() -> None:
    on_tensors(lambda t: t.float() if t.dtype is torch.bfloat16 else t)


def ignore_strides() -> None:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided or tensor.is_contiguous() or tensor.requires_grad:
            return tensor
        end = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
        if (
            end > tensor.untyped_storage().nbytes()
        ):  # an expanded tensor has more elements than memory
            return tensor
        dense = torch.empty(tensor.shape, device="meta").stride()
        return tensor.as_strided(tensor.shape, dense)

    on_tensors(change)


def split_shared_storage() -> None:
    on_tensors(lambda t: t.clone() if t.layout is torch.strided and not t.requires_grad else t)


def flip_a_bit_in_large_tensors() -> None:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is not torch.strided or tensor.nbytes < _MANY or tensor.requires_grad:
            return tensor
        changed = tensor.clone()
        changed.view(-1).view(torch.uint8)[-5] ^= 1
        return changed

    on_tensors(change)


BROKEN = {
    "LOSES_BFLOAT16": Broken(tensorpipe(once(lose_bfloat16)), "data", ("data.", "bfloat16")),
    "IGNORES_STRIDES": Broken(
        tensorpipe(once(ignore_strides)), "data", ("data.", "elements differ")
    ),
    "SPLITS_SHARED_STORAGE": Broken(tensorpipe(once(split_shared_storage)), "data", ("data.", "")),
    "FLIPS_A_BIT_IN_LARGE_TENSORS": Broken(
        tensorpipe(once(flip_a_bit_in_large_tensors)), "data", ("data.", "elements differ")
    ),
}
