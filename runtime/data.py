"""What a model is trained on: made-up text that can be learned, or a file of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from specs.errors import RunError


class Samples(Protocol):
    """An endless row of samples; sample i is the same whoever asks for it."""

    def tokens(self, sample: int, length: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The `length` tokens of a sample."""
        ...


class SyntheticSamples:
    """Text of a made-up language of `vocab` words, fixed by the seed.

    Words are frequent by Zipf's law (word of rank r with probability ~ 1/(r+1)); after each word
    there comes its usual follower with probability 0.75, else a word drawn by frequency. A model
    learns the frequencies within tens of steps and the followers later, so a loss that
    does not fall means that training is broken, not that there is nothing to learn.
    """

    FOLLOWS = 0.75

    def __init__(self, vocab: int, seed: int) -> None:
        self.vocab = vocab
        self.seed = seed
        weights = 1.0 / np.arange(1, vocab + 1)
        words = np.random.default_rng([seed, 0])
        self._cumulative = np.cumsum(weights / weights.sum())
        self._word_of_rank = words.permutation(vocab)
        # A follower is drawn by frequency too, else all words would become equally frequent.
        self._follower = self._draw(words.random(vocab))

    def _draw(
        self, uniform: np.ndarray[tuple[int], np.dtype[np.float64]]
    ) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        ranks = np.searchsorted(self._cumulative, uniform, side="right")
        return self._word_of_rank[np.minimum(ranks, self.vocab - 1)].astype(np.int64)

    def tokens(self, sample: int, length: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The `length` tokens of a sample."""
        dice = np.random.default_rng([self.seed, 1, sample])
        tokens = self._draw(dice.random(length))
        follows = dice.random(length) < self.FOLLOWS
        follows[0] = False
        # How many followers in a row lead to each position; all of one count are filled at once.
        here = np.arange(length)
        row = here - np.maximum.accumulate(np.where(follows, 0, here))
        for count in range(1, int(row.max()) + 1):
            at = np.flatnonzero(row == count)
            tokens[at] = self._follower[tokens[at - 1]]
        return tokens


class FileSamples:
    """Windows of a file of tokens, memory-mapped: a .npy of integers, or raw uint16 (.bin).

    Sample i begins at token (i * stride) modulo what fits, the stride being the length less one, so
    that each token is a label once. Raises RunError for a file that cannot be read, is too short,
    or has tokens that the vocabulary lacks.
    """

    def __init__(self, path: str | Path, vocab: int) -> None:
        self.path = Path(path)
        self.vocab = vocab
        try:
            if self.path.suffix == ".npy":
                self._all = np.lib.format.open_memmap(self.path, mode="r")  # never unpickles
            else:
                self._all = np.memmap(self.path, dtype=np.uint16, mode="r")
        except (OSError, ValueError) as error:
            raise RunError(
                f"{self.path}: cannot be read as tokens ({error}), expected a .npy of integers or "
                "raw uint16"
            ) from None
        if self._all.ndim != 1 or not np.issubdtype(self._all.dtype, np.integer):
            raise RunError(
                f"{self.path}: holds {self._all.dtype} of shape {self._all.shape}, "
                "expected one row of integers"
            )

    def tokens(self, sample: int, length: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The `length` tokens of a sample."""
        windows = (len(self._all) - 1) // (length - 1) if length > 1 else 0
        if windows < 1:
            raise RunError(
                f"{self.path}: has {len(self._all)} tokens, expected at least {length}, "
                "one sequence and its last label"
            )
        first = sample % windows * (length - 1)
        tokens = np.asarray(self._all[first : first + length], dtype=np.int64)
        if tokens.min() < 0 or tokens.max() >= self.vocab:
            raise RunError(
                f"{self.path}: has token {int(tokens.max())}, expected 0 to {self.vocab - 1}, "
                "the vocabulary of the model"
            )
        return tokens


def batch(samples: Samples, first: int, count: int, seq_len: int) -> tuple[Tensor, Tensor]:
    """Tokens and labels of `count` consecutive samples, int64, shape (count, seq_len) each.

    The label of a position is the token after it.
    """
    rows = np.stack([samples.tokens(first + i, seq_len + 1) for i in range(count)])
    tokens = torch.from_numpy(rows)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
