from __future__ import annotations

import random

from specs.boxes import Box, atoms, even_slice


def test_slices_are_even_and_cover_the_length() -> None:
    assert [even_slice(10, 4, part) for part in range(4)] == [(0, 2), (2, 3), (5, 2), (7, 3)]
    for length, parts in ((1, 3), (7, 3), (8, 4), (50, 8)):
        slices = [even_slice(length, parts, part) for part in range(parts)]
        assert sum(size for _, size in slices) == length
        assert [first for first, _ in slices[1:]] == [first + size for first, size in slices[:-1]]


def test_the_overlap_of_boxes_is_what_both_hold() -> None:
    left, right = Box((0, 2), (4, 4)), Box((3, 0), (5, 4))
    assert left.overlap(right) == Box((3, 2), (1, 2))
    assert left.overlap(Box((4, 0), (1, 9))) is None
    assert Box((3, 2), (1, 2)).within(left) == (slice(3, 4), slice(0, 2))


def test_halves_and_thirds_of_six_rows_have_four_atoms() -> None:
    halves = [Box.whole((6, 2)).cut(0, *even_slice(6, 2, i)) for i in range(2)]
    thirds = [Box.whole((6, 2)).cut(0, *even_slice(6, 3, i)) for i in range(3)]
    rows = [(atom.offset[0], atom.size[0]) for atom in atoms([*halves, *thirds])]
    assert rows == [(0, 2), (2, 1), (3, 1), (4, 2)]


def test_atoms_of_random_boxes_are_disjoint_and_fill_each_box() -> None:
    dice = random.Random(5)
    for _ in range(200):
        boxes = []
        for _ in range(dice.randint(1, 4)):
            offset = (dice.randint(0, 4), dice.randint(0, 4))
            boxes.append(Box(offset, (dice.randint(1, 4), dice.randint(1, 4))))
        parts = atoms(boxes)
        for i, part in enumerate(parts):
            assert all(part.overlap(other) is None for other in parts[i + 1 :])
            assert all(box.overlap(part) in (None, part) for box in boxes)
        for box in boxes:
            assert sum(p.elements for p in parts if box.overlap(p)) == box.elements
