"""Looking ahead while a template is chosen: what still packs, and what the stages can hold.

Memory of a stage with experts depends on how many devices they are spread over, and so on the
replicas that the template will have: `fit` is kept by the power of two of these devices.
"""

from __future__ import annotations

from planner.kernel.jit import in_place
from planner.kernel.state import Array
from planner.policy.features import LEVELS
from planner.policy.kernel.rolls import AIM, COVER, DEMAND, PACKS, SLOTS, STAGE, TRIED, Rolls
from planner.policy.kernel.scene import ALONE, FIRST, LAST, LEAST, LEVEL_OF, WITHIN, Scene


@in_place
def groups_left(scene: Scene, rolls: Rolls, i: int) -> int:
    """Stages of the least degree that still pack beside one replica of the stages so far."""
    left = 0
    for g in range(scene.kind.shape[0]):
        e = scene.type_int[LEAST, g]
        if e >= 0:
            left += max(0, rolls.group[i, SLOTS, g, e] - rolls.group[i, DEMAND, g, e])
    return left


@in_place
def packs_after(rolls: Rolls, i: int, g: int, e: int, stages: int) -> int:
    """Replicas that pack once so many stages of degree 2**e on type g are added."""
    r = rolls.whole[i, PACKS] if rolls.whole[i, STAGE] > 0 else 1 << 40
    for level in range(e + 1):
        wanted = rolls.group[i, DEMAND, g, level] + (stages << (e - level))
        r = min(r, rolls.group[i, SLOTS, g, level] // wanted)
    return r


@in_place
def spread(scene: Scene, q: int, replicas: int) -> int:
    """Where `fit` and `tail` say what a stage of kind q holds in so many replicas."""
    devices = max(replicas, 1) << scene.kind_int[LEVEL_OF, q]
    w = 0
    while w + 1 < scene.fit.shape[3] and (2 << w) <= devices:
        w += 1
    return w


@in_place
def holds(scene: Scene, q: int, s: int, depth: int, replicas: int) -> float:
    """Blocks that fit on stage s of a template of a depth."""
    blocks: float = scene.fit[
        (s == 0) * FIRST + (s == depth - 1) * LAST, q, depth - s, spread(scene, q, replicas)
    ]
    return blocks


@in_place
def cover(scene: Scene, rolls: Rolls, i: int, replicas: int) -> float:
    """Blocks that fit on the stages chosen so far."""
    total: float = rolls.real[i, COVER]
    if scene.fit.shape[3] == 1:
        return total
    total, depth = 0.0, rolls.whole[i, AIM]
    for s in range(rolls.whole[i, STAGE]):
        q = rolls.choices[i, rolls.whole[i, TRIED], 1 + s]
        total += holds(scene, q, s, depth, replicas)
    return total


@in_place
def due(scene: Scene, rolls: Rolls, i: int) -> float:
    """Blocks that each stage still to choose must hold on average, at least a part of one."""
    left = rolls.whole[i, AIM] - rolls.whole[i, STAGE]
    blocks: float = max(scene.blocks - rolls.real[i, COVER], 0.5) / max(left, 1)
    return blocks


@in_place
def alike(scene: Scene, rolls: Rolls, i: int, g: int, e: int, depth: int) -> tuple[int, float]:
    """Replicas that pack, and blocks that fit, if all stages to come of `depth` are of one kind."""
    s, q = rolls.whole[i, STAGE], scene.kind[g, e]
    left = depth - s
    r = packs_after(rolls, i, g, e, left)
    w = spread(scene, q, r)
    blocks = cover(scene, rolls, i, r) + scene.tail[q, left, w]
    if s == 0:
        blocks += scene.fit[FIRST if left > 1 else ALONE, q, left, w]
        blocks -= scene.fit[WITHIN if left > 1 else LAST, q, left, w]
    return r, blocks


@in_place
def completes(scene: Scene, rolls: Rolls, i: int, depth: int, g: int, e: int, spare: Array) -> bool:
    """Whether the model fits once the next stage is on type g with degree 2**e (g < 0: any).

    Tried with the largest stages that leave a GPU for each of the others; with experts for the
    replicas that pack, half of them, and so on: what this finds is there, what it misses may be.
    spare: (G, LEVELS) to work in.
    """
    s = rolls.whole[i, STAGE]
    r = 1
    if scene.fit.shape[3] > 1:
        r = packs_after(rolls, i, g, e, 1) if g >= 0 else _most_replicas(scene, rolls, i)
    while r >= 1:
        blocks, at = cover(scene, rolls, i, r), s
        for t in range(scene.kind.shape[0]):
            for level in range(LEVELS):
                free = rolls.group[i, SLOTS, t, level] // r - rolls.group[i, DEMAND, t, level]
                if t == g and level <= e:
                    free -= 1 << (e - level)
                spare[t, level] = max(free, 0)
        one = True
        if g >= 0:
            mine = holds(scene, scene.kind[g, e], s, depth, r)
            blocks += mine
            one = mine >= 1
            at += 1
        one = one and _each_holds_one(scene, rolls, i, r)
        if one and _filled(scene, at, depth, r, blocks, spare):
            return True
        r //= 2
    return False


@in_place
def _each_holds_one(scene: Scene, rolls: Rolls, i: int, replicas: int) -> bool:
    """Whether each stage so far holds a block in so many replicas."""
    if scene.fit.shape[3] == 1:
        return True
    depth = rolls.whole[i, AIM]
    for s in range(rolls.whole[i, STAGE]):
        q = rolls.choices[i, rolls.whole[i, TRIED], 1 + s]
        if holds(scene, q, s, depth, replicas) < 1:
            return False
    return True


@in_place
def _most_replicas(scene: Scene, rolls: Rolls, i: int) -> int:
    most = 0
    for g in range(scene.kind.shape[0]):
        if scene.type_int[LEAST, g] >= 0:
            most = max(most, rolls.group[i, SLOTS, g, scene.type_int[LEAST, g]])
    return most


@in_place
def _filled(scene: Scene, at: int, depth: int, r: int, blocks: float, spare: Array) -> bool:
    """Whether stages `at` to the last can be placed and hold the rest of the model.

    The last stages get what holds most: where few micro-batches are in flight it holds most more.
    """
    groups = 0
    for g in range(scene.kind.shape[0]):
        if scene.type_int[LEAST, g] >= 0:
            groups += spare[g, scene.type_int[LEAST, g]]
    if groups < depth - at:
        return False
    s = depth - 1
    while s >= at:
        best_g, best_e, most, least_taken = -1, 0, 0.0, 0
        for g in range(scene.kind.shape[0]):
            low = scene.type_int[LEAST, g]
            for e in range(LEVELS):
                q = scene.kind[g, e]
                taken = 1 << max(e - low, 0)
                packs = q >= 0 and groups - taken >= s - at
                for level in range(e + 1):
                    packs = packs and (spare[g, level] >> (e - level)) > 0
                if not packs:
                    continue
                fits = holds(scene, q, s, depth, r)
                if fits > most or (fits == most and most > 0 and taken < least_taken):
                    best_g, best_e, most, least_taken = g, e, fits, taken
        if best_g < 0:
            return False
        blocks += most
        groups -= least_taken
        for level in range(best_e + 1):
            spare[best_g, level] -= 1 << (best_e - level)
        s -= 1
    return blocks >= scene.blocks
