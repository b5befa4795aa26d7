from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from runtime.data import FileSamples, SyntheticSamples, batch
from specs.errors import RunError


def test_a_sample_depends_on_its_number_and_the_seed_alone() -> None:
    one, other = SyntheticSamples(100, 4), SyntheticSamples(100, 4)
    other.tokens(0, 30)
    assert one.tokens(7, 30).tolist() == other.tokens(7, 30).tolist()
    assert one.tokens(7, 30).tolist() != one.tokens(8, 30).tolist()
    assert one.tokens(7, 30).tolist() != SyntheticSamples(100, 5).tokens(7, 30).tolist()


def test_made_up_text_has_something_to_learn() -> None:
    samples = SyntheticSamples(64, 0)
    words: Counter[int] = Counter()
    pairs: Counter[tuple[int, int]] = Counter()
    for i in range(200):
        tokens = samples.tokens(i, 129).tolist()
        words.update(tokens)
        pairs.update(pairwise(tokens))
    total = sum(words.values())
    entropy = -sum(n / total * math.log(n / total) for n in words.values())
    assert entropy < 0.9 * math.log(64)
    # The usual follower comes three times out of four: far less is left once it is known.
    follower: dict[int, int] = {}
    for (before, _after), count in pairs.items():
        follower[before] = max(follower.get(before, 0), count)
    assert sum(follower.values()) / sum(pairs.values()) > 0.75


def test_words_follow_each_other_one_by_one() -> None:
    samples = SyntheticSamples(40, 9)
    dice = np.random.default_rng([9, 1, 6])
    expected = samples._draw(dice.random(500)).tolist()
    follows = dice.random(500) < samples.FOLLOWS
    for i in range(1, 500):
        if follows[i]:
            expected[i] = int(samples._follower[expected[i - 1]])
    assert samples.tokens(6, 500).tolist() == expected


def test_labels_are_the_tokens_after() -> None:
    samples = SyntheticSamples(50, 1)
    tokens, labels = batch(samples, 3, 2, 8)
    assert tokens.shape == labels.shape == (2, 8)
    assert tokens[0, 1:].tolist() == labels[0, :-1].tolist()
    assert tokens[1].tolist() == samples.tokens(4, 9)[:-1].tolist()


@pytest.mark.parametrize("name", ["tokens.npy", "tokens.bin"])
def test_a_file_is_read_in_windows_that_share_their_border(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    values = np.arange(13, dtype=np.uint16)
    np.save(path, values) if name.endswith("npy") else values.tofile(path)
    samples = FileSamples(path, 13)
    assert samples.tokens(0, 5).tolist() == [0, 1, 2, 3, 4]
    assert samples.tokens(2, 5).tolist() == [8, 9, 10, 11, 12]
    assert samples.tokens(3, 5).tolist() == [0, 1, 2, 3, 4]


def test_files_that_do_not_serve_are_refused(tmp_path: Path) -> None:
    short, wide, flat = (tmp_path / f"{n}.npy" for n in ("short", "wide", "flat"))
    np.save(short, np.arange(4))
    np.save(wide, np.full(20, 99))
    np.save(flat, np.zeros((4, 4)))
    with pytest.raises(RunError, match="has 4 tokens, expected at least 9"):
        FileSamples(short, 50).tokens(0, 9)
    with pytest.raises(RunError, match="has token 99, expected 0 to 49"):
        FileSamples(wide, 50).tokens(0, 9)
    with pytest.raises(RunError, match="one row of integers"):
        FileSamples(flat, 50)
    objects, noise = tmp_path / "objects.npy", tmp_path / "noise.npy"
    np.save(objects, np.array([{}], dtype=object), allow_pickle=True)
    noise.write_bytes(bytes(range(200)))
    for path in (tmp_path / "none.bin", objects, noise):
        with pytest.raises(RunError, match="cannot be read"):
            FileSamples(path, 50)
