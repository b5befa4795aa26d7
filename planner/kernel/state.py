"""Arrays that compiled code writes: the templates of a plan, and room to work in."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from planner.kernel.tables import GPUS, Tables

Array = Any

# What became of a candidate. A code of at least MEMORY says memory at stage (code - MEMORY).
OK = 0
NO_ROWS = 1
NO_LINK = 2
NO_PACKING = 3
TOO_FEW_SAMPLES = 4
TOO_FEW_BLOCKS = 5
NO_TURN = 6
MEMORY = 8


# Rows of the arrays below.
DEPTH, REPLICAS, BATCH = 0, 1, 2  # of Laid.shape
KIND, FIRST, TILING = 0, 1, 2  # of Laid.stage
FREE, LEFT, COPIES, TOUCHED = 0, 1, 2, 3  # of node_int
LEAVING, ENTERING, SYNC = 0, 1, 2  # of node_real
LENGTH, CURSOR, LAST = 0, 1, 2  # of type_int
SEND, STAGE_MS, ONCE, FORWARD, BACK, UPDATES = 0, 1, 2, 3, 4, 5  # of stage_real
TOTAL, SLOWEST, PIPE = 0, 1, 2  # of template_real
MICRO_BATCHES, STAGE_AT = 0, 1  # of template_int
STAGE_CUTS, EXPERT_CUTS, WIDTH_CUTS = 0, 1, 2  # of cuts
FIXED_MS, FIXED_BYTES, END_TRANSIENT = 0, 1, 2  # of Options.real
OF_TILING, ALLOWED, CAP, BELOW = 0, 1, 2, 3  # of Options.whole
BLOCK_MS, BLOCK_BYTES, BLOCK_TRANSIENT = 0, 1, 2  # of Options.block
LIMIT, PER_BLOCK = 0, 1  # of Options.stage_real
OPTIONS, BLOCKS, CHOSEN, TRIAL_BLOCKS, TRIAL_CHOSEN, MOST, ARRANGED = 0, 1, 2, 3, 4, 5, 6
BEST_FIRST, BEST_TILING, KEPT_BLOCKS, KEPT_CHOSEN = 7, 8, 9, 10  # of Options.stage_int, as above
BEST, OTHER = 0, 1  # of spare
CODE, AT_KIND, AT_BATCH, EVALUATIONS = 0, 1, 2, 3  # of why


class Laid(NamedTuple):
    """Filled templates k of a plan; a template's groups stand in `node` at r * depth + s."""

    shape: Array  # (3, K)
    stage: Array  # (3, K, D + 1); FIRST: first block of each stage, then L
    node: Array  # (K, GPUs)


class Options(NamedTuple):
    """Ways to run each stage, and the split among them; its own tuple because it is passed often.

    Option x of stage s counts where x < stage_int[OPTIONS, s].
    """

    real: Array  # (3, D, X)
    whole: Array  # (4, D, X) tiling, whether the split may take it, its blocks
    block: Array  # (3, D, X, kinds of block)
    stage_int: Array  # (11, D)
    stage_real: Array  # (2, D)


class Room(NamedTuple):
    """Scratch; contents have no meaning between calls but for what a docstring says."""

    node_int: Array  # (4, N) free for the template being filled, left while packing, ...
    node_real: Array  # (3, N)
    queue: Array  # (G, N) nodes of each type in the order best fit takes them
    type_int: Array  # (3, G) of that queue, and the node last placed into
    slots: Array  # (Q,) groups of each kind that the free GPUs hold
    stage_real: Array  # (6, K, D) transfers, t_s, g_s, transfers of each pass, updates
    template_real: Array  # (3, K) sum t, max t, pipe
    template_int: Array  # (2, K) M_k, and a stage
    cuts: Array  # (3, borders)
    options: Options
    spare: Array  # (2, GPUs) nodes of the best and of the other placement
    why: Array  # (4,) code; kind and batch where rows are missing; evaluations made
    over: Array  # (1,) bytes that memory is exceeded by
    tally: Array  # (codes,) candidates refused, by code
    closest: Array  # (codes,) least excess of memory, in bytes
    no_rows: Array  # (Q, B) candidates without profile rows, by the stage that lacks them


def new_laid(tables: Tables, templates: int, depth: int) -> Laid:
    """Room for so many templates of so many stages."""
    return Laid(
        shape=np.zeros((3, templates), np.int64),
        stage=np.zeros((3, templates, depth + 1), np.int64),
        node=np.zeros((templates, int(tables.node_int[GPUS].sum())), np.int64),
    )


def new_room(tables: Tables, templates: int, depth: int) -> Room:
    """Scratch for plans of so many templates of so many stages."""
    nodes, gpus = tables.node_int.shape[1], int(tables.node_int[GPUS].sum())
    types, tilings = tables.gpu_real.shape[1], tables.tile.shape[1]
    kinds, block_kinds = tables.kind_int.shape[1], tables.gradient.shape[1]
    codes = MEMORY + depth
    pieces = max(depth + 1, int(tables.tile[:2].max()) + 1)

    def whole(*shape: int) -> Array:
        return np.zeros(shape, np.int64)

    def real(*shape: int) -> Array:
        return np.zeros(shape, np.float64)

    return Room(
        node_int=whole(4, nodes),
        node_real=real(3, nodes),
        queue=whole(types, nodes),
        type_int=whole(3, types),
        slots=whole(kinds),
        stage_real=real(6, templates, depth),
        template_real=real(3, templates),
        template_int=whole(2, templates),
        cuts=whole(3, templates * pieces),
        options=Options(
            real=real(3, depth, tilings),
            whole=whole(4, depth, tilings),
            block=real(3, depth, tilings, block_kinds),
            stage_int=whole(11, depth),
            stage_real=real(2, depth),
        ),
        spare=whole(2, gpus),
        why=whole(4),
        over=real(1),
        tally=whole(codes),
        closest=np.full(codes, np.inf),
        no_rows=whole(kinds, len(tables.size)),
    )
