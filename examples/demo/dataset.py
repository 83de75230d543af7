"""scikit-learn's handwritten digits: 1797 grey-scale images of 8 x 8 pixels in ten classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

FILE = "digits.npz"


class MissingDependencyError(Exception):
    """A package that only the demo needs is not installed."""


@dataclass(frozen=True)
class Share:
    """One trainer's part of the data; images are N x 64 floats from 0 to 1, labels N integers."""

    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor


def prepare(folder: Path, seed: int) -> tuple[int, int]:
    """Split the digits and write them to ``folder``; return the sizes of training and test set.

    :param seed: seed of the split; four fifths of each class are for training, one fifth for testing.
    :raises MissingDependencyError: scikit-learn is not installed.
    """
    try:
        import numpy as np
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise MissingDependencyError(
            f"the demo's data set is part of scikit-learn, which cannot be imported ({error}); "
            "install it with: pip install -r examples/demo/requirements.txt"
        ) from error
    digits = load_digits()
    pictures = (digits.data / 16.0).astype(np.float32)
    train_x, test_x, train_y, test_y = train_test_split(
        pictures, digits.target, test_size=0.2, random_state=seed, stratify=digits.target
    )
    np.savez(
        folder / FILE,
        train_x=train_x,
        train_y=train_y.astype(np.int64),
        test_x=test_x,
        test_y=test_y.astype(np.int64),
    )
    return len(train_x), len(test_x)


def load_share(folder: Path, part: int, parts: int) -> Share:
    """Return every ``parts``-th sample, starting with sample ``part``."""
    import numpy as np
    import torch

    with np.load(folder / FILE) as arrays:
        return Share(**{name: torch.from_numpy(arrays[name][part::parts]) for name in arrays.files})
