"""What the network sees: sizes and meaning of every feature vector.

All features are fractions or logarithms of ratios, about -1 to 2, and none names a GPU type or a
model: a new type or another cluster size needs no retraining. `fits` is the number of blocks that
fit a stage in the optimistic count (smallest micro-batch, best tiling). `due` is what a stage must
hold on average from here: the blocks that the stages so far cannot hold, over the stages left.
`alike` looks ahead: all stages to come are of the candidate's kind. `share of all rates` is what
GPUs at work make of the blocks per ms that the whole cluster could. Written by
planner/policy/kernel/episode.py; a change here needs a new FORMAT in planner/policy/weights.py.
"""

from __future__ import annotations

MOST_DEPTH = 32  # D_max = min(blocks, 32)
MOST_TEMPLATES = 8
LEVELS = 7  # TP degrees 1, 2, 4 ... 64
STOP = 0  # index of STOP among the choices of the depth head; depth d stands at index d

SUMMARY = (
    "log2 of the GPUs",
    "number of types",
    "unevenness of node sizes",
    "largest share of a type",
    "second share",
    "third share",
    "sum of squared shares",
    "log ratio of the fastest type to the slowest",
    "log of the mean over the fastest rate",
    "log2 of how often the model fits",
    "log2 of the blocks",
    "gradient synchronisation over the ideal iteration",
    "experts",
)

TOKEN = (
    "share of all GPUs",
    "free share of all GPUs",
    "free share of its own",
    "rate over the fastest",
    "log of that rate",
    "fits of TP 1, one micro-batch in flight, over blocks",
    "fits of TP 1, eight in flight",
    "fits of the highest degree, one in flight",
    "per-GPU rate at the highest degree over the best",
    "log2 of the largest node",
    "log2 of the largest free node",
    "GPUs in free groups of 2 over free",
    "GPUs in free groups of 4",
    "GPUs in free groups of 8",
    "log of the network card over 12.5 GB/s",
    "log of the bus over 50 GB/s",
    "host overhead over one block",
    "gradient synchronisation over the ideal iteration",
)

STATE = (
    "log2 of the GPUs",
    "number of types",
    "unevenness of node sizes",
    "templates placed",
    "throughput so far over the ideal",
    "free share",
    "log2 of the blocks",
    "log2 of samples a GPU",
    "log2 of how often the model fits",
    "gradient synchronisation over the ideal iteration",
    "depth",
    "stages done over depth",
    "log2 of the depth",
    "blocks that fit so far over blocks",
    "head time in blocks",
    "log2 of replicas that pack",
    "share of the free GPUs they use",
    "mean speed of the stages so far over the fastest GPU",
    "slowest stage so far",
    "fastest stage so far",
    "types used in the template",
    "experts",
    "gain of the last template",
    "first template",
    "due over blocks per stage",
)

DEPTH = (
    "STOP",
    "depth",
    "log2 of the depth",
    "log2 of pipelines of single GPUs",
    "GPUs left over that depth",
    "blocks that fit over blocks",
    "rounding of blocks per stage",
    "log2 of the depth over the least that fits",
    "log2 of the depth over the largest node",
    "bubble",
    "share of GPUs in types divided by the depth",
    "gradient synchronisation of one stage",
    "depth of the template before",
    "log2 ratio to it",
    "share of all rates of the best kind that fits, alike",
    "there is one",
)

TYPE_EXTRA = (
    "log2 of replicas after it",
    "replicas after over before",
    "GPUs used at that count",
    "type of the stage before",
    "type used in the template",
    "share of the stages so far",
    "fits at the best degree over blocks per stage",
    "fits at the least degree",
    "log of its best speed over the mean so far",
    "free share left",
    "groups left over depth",
    "last stage",
    "fits at the best degree over due",
    "blocks that fit over blocks, at most 1, alike at its best degree",
    "log2 of replicas, alike",
    "share of all rates, alike",
)

DEGREE = (
    "log2 of the degree",
    "log2 of replicas after it",
    "replicas after over before",
    "GPUs used at that count",
    "fits over blocks per stage",
    "per-GPU rate over the type's best",
    "log of its speed over the mean so far",
    "speed over the fastest kind",
    "kind of the stage before",
    "degree over the largest node",
    "degree over the largest free node",
    "GPUs in free groups of the degree over free",
    "degree of the stage before",
    "blocks per stage fit",
    "kind used in the template",
    "rate of the type over the fastest",
    "last stage",
    "first stage",
    "fits over due",
    "blocks that fit over blocks, alike",
    "log2 of replicas, alike",
    "GPUs used at that count",
    "share of all rates, alike",
)

# Of the flat policy alone: what the others leave to the fill, it chooses.
BLOCK_SHARE = (
    "blocks over an even split",
    "log2 of that",
    "blocks that fit over it",
    "they fit",
    "log of its time over the mean of the stages so far",
    "log2 ratio to a split by speed so far",
    "mean of the shares so far",
    "first stage",
    "last stage",
)

REPLICAS = (
    "log2 of the replicas",
    "GPUs of all replicas over free",
    "log2 ratio to the replicas that pack",
    "they pack",
    "one more would not pack",
    "log2 of samples a replica",
)

MICRO_BATCH = (
    "log2 of the size",
    "log2 of micro-batches a replica",
    "bubble",
    "size over the largest",
    "least that fits over the blocks of a stage",
    "log2 of the depth",
)

SUMMARIES, TOKENS, STATES = len(SUMMARY), len(TOKEN), len(STATE)
DEPTHS, TYPES, DEGREES = len(DEPTH), len(TOKEN) + len(TYPE_EXTRA), len(DEGREE)
BLOCK_SHARES, REPLICA_COUNTS, MICRO_BATCHES = len(BLOCK_SHARE), len(REPLICAS), len(MICRO_BATCH)
