"""Which box of which tensor each GPU of a plan holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from specs.boxes import Box, Placement, Tag, even_slice
from specs.layer import LayerKind, LayerType
from specs.model import Model
from specs.plan import Plan, Stage

EMBEDDING_WEIGHT = "model.embed_tokens.weight"
HEAD_WEIGHT = "lm_head.weight"
HEAD_BIAS = "lm_head.bias"
FINAL_NORM_OF = "model.norm."
FINAL_NORM = FINAL_NORM_OF + "weight"


class Cut(StrEnum):
    """How the ranks of a stage share a tensor."""

    NONE = "none"  # every rank has it whole and computes its whole gradient
    SUMMED = "summed"  # every rank has it whole and computes a summand of its gradient
    EVEN = "even"  # slices of one axis over the tensor-parallel group
    HEADS = "heads"  # the same, but a key or value head is never cut: few heads are held twice
    ROUTER = "router"  # whole; a summand where each rank routes its own share of the tokens
    EXPERTS = "experts"  # experts over EP, their width over ETP


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a layer: its name inside the layer, whole shape, and how it is shared.

    axis: the one that is cut; of experts the width (axis 0 counts the experts). heads: that the
    axis holds, of which none may be cut through; 0 = every element may stand alone. start: the
    number that it is filled with at the start of training, None = random, by its name a norm's or
    bias's.
    """

    name: str
    shape: tuple[int, ...]
    cut: Cut = Cut.NONE
    axis: int = 0
    heads: int = 0
    start: float | None = None


@dataclass(frozen=True, slots=True)
class ExpertSlice:
    """Which part of the routed experts one device of a stage holds (DESIGN section 13, 21)."""

    ep: int = 1
    etp: int = 1
    device: int = 0  # in the stage: replica * tp + tensor-parallel rank

    def follows_tp(self, tp: int) -> bool:
        """Whether experts are cut as the rest of the block is: each rank has a slice of every one.

        Then all tokens stay on all ranks, and nothing is dispatched.
        """
        return self.ep == 1 and self.etp == tp

    @property
    def ep_rank(self) -> int:
        """Which share of the experts."""
        return self.device % (self.ep * self.etp) // self.etp

    @property
    def etp_rank(self) -> int:
        """Which slice of their width."""
        return self.device % self.etp

    @property
    def ep_peers(self) -> tuple[int, ...]:
        """Devices that hold the same slice of the width of the same copy, by EP rank."""
        first = self.device - self.device % (self.ep * self.etp) + self.etp_rank
        return tuple(first + e * self.etp for e in range(self.ep))

    @property
    def etp_peers(self) -> tuple[int, ...]:
        """Devices that hold the same experts of the same copy, by ETP rank."""
        first = self.device - self.etp_rank
        return tuple(range(first, first + self.etp))


@lru_cache(maxsize=256)
def tensors_of(layer: LayerType) -> tuple[Tensor, ...]:
    """Every tensor of a layer type, named as in the Hugging Face model, from its shapes alone.

    A family that is not run here (learned positions, or known only by sizes) counts as one tensor
    of the right size, cut evenly: enough to say how many bytes a GPU holds. A layer that was
    discovered (`specs.discovery`) carries its tensors.
    """
    if layer.flag("tensors"):
        return (*_listed(layer), *_vocabulary(layer))
    if layer.kind is LayerKind.EMBEDDING and layer.flag("vocab") and not layer.flag("positions"):
        shape = (layer.shape("vocab"), layer.shape("hidden"))
        return (Tensor(EMBEDDING_WEIGHT, shape, Cut.EVEN),)
    if layer.kind is LayerKind.HEAD and layer.flag("norm") == "rms":
        hidden = layer.shape("hidden")
        matrix = (layer.shape("vocab"), hidden)
        # A tied matrix is one tensor held at both ends.
        name = EMBEDDING_WEIGHT if layer.tied else HEAD_WEIGHT
        return Tensor(FINAL_NORM, (hidden,)), Tensor(name, matrix, Cut.EVEN)
    if layer.kind.is_block and layer.flag("norm") == "rms":
        attention = _mla(layer) if layer.flag("attention") == "mla" else _gqa(layer)
        hidden = layer.shape("hidden")
        norms = [
            Tensor("input_layernorm.weight", (hidden,)),
            Tensor("post_attention_layernorm.weight", (hidden,)),
        ]
        return (*attention, *_feed_forward(layer), *norms)
    return (Tensor("weights", (layer.parameters,), Cut.EVEN),)


def _listed(layer: LayerType) -> list[Tensor]:
    """The tensors that a discovered layer carries, as written by `specs.discovery`."""
    rows = json.loads(str(layer.flag("tensors")))
    return [
        Tensor(name, tuple(shape), Cut(cut), axis, heads, start)
        for name, shape, cut, axis, heads, start in rows
    ]


def _vocabulary(layer: LayerType) -> list[Tensor]:
    """The output projection of a discovered head; a block has none."""
    if layer.kind is not LayerKind.HEAD:
        return []
    name = EMBEDDING_WEIGHT if layer.tied else HEAD_WEIGHT
    return [Tensor(name, (layer.shape("vocab"), layer.shape("hidden")), Cut.EVEN)]


def _linear(
    name: str, out: int, into: int, cut: Cut, *, bias: bool, heads: int = 0
) -> list[Tensor]:
    """A projection split by output features, with its bias."""
    found = [Tensor(f"{name}.weight", (out, into), cut, 0, heads)]
    return found + ([Tensor(f"{name}.bias", (out,), cut, 0, heads)] if bias else [])


def _row_linear(name: str, out: int, into: int, *, bias: bool) -> list[Tensor]:
    """A projection split by input features; its bias is added once, by every rank alike."""
    found = [Tensor(f"{name}.weight", (out, into), Cut.EVEN, 1)]
    return found + ([Tensor(f"{name}.bias", (out,))] if bias else [])


def _gqa(layer: LayerType) -> list[Tensor]:
    hidden, heads, head = layer.shape("hidden"), layer.shape("heads"), layer.shape("head_dim")
    kv_heads, bias = layer.shape("kv_heads"), bool(layer.flag("qkv_bias"))
    found = _linear("self_attn.q_proj", heads * head, hidden, Cut.EVEN, bias=bias)
    for name in ("k_proj", "v_proj"):
        found += _linear(
            f"self_attn.{name}", kv_heads * head, hidden, Cut.HEADS, bias=bias, heads=kv_heads
        )
    found += _row_linear("self_attn.o_proj", hidden, heads * head, bias=bool(layer.flag("o_bias")))
    if layer.flag("qk_norm"):
        # One norm for all heads, of which each rank has some: its gradient is a sum over ranks.
        found += [
            Tensor(f"self_attn.{n}.weight", (head,), Cut.SUMMED) for n in ("q_norm", "k_norm")
        ]
    return found


def _mla(layer: LayerType) -> list[Tensor]:
    """Latent attention: the model's own tensor-parallel plan leaves it whole on every rank."""
    hidden, heads = layer.shape("hidden"), layer.shape("heads")
    q_rank, kv_rank = layer.shape("q_rank"), layer.shape("kv_rank")
    nope, rope, value = (layer.shape(n) for n in ("nope_dim", "rope_dim", "value_dim"))
    query = heads * (nope + rope)
    if q_rank:
        shapes = {
            "q_a_proj": (q_rank, hidden),
            "q_a_layernorm": (q_rank,),
            "q_b_proj": (query, q_rank),
        }
    else:
        shapes = {"q_proj": (query, hidden)}
    shapes |= {
        "kv_a_proj_with_mqa": (kv_rank + rope, hidden),
        "kv_a_layernorm": (kv_rank,),
        "kv_b_proj": (heads * (nope + value), kv_rank),
        "o_proj": (hidden, heads * value),
    }
    return [Tensor(f"self_attn.{name}.weight", shape) for name, shape in shapes.items()]


def _gated_mlp(prefix: str, hidden: int, width: int, *, bias: bool) -> list[Tensor]:
    found = []
    for name in ("gate_proj", "up_proj"):
        found += _linear(f"{prefix}.{name}", width, hidden, Cut.EVEN, bias=bias)
    return found + _row_linear(f"{prefix}.down_proj", hidden, width, bias=bias)


def _feed_forward(layer: LayerType) -> list[Tensor]:
    hidden = layer.shape("hidden")
    if layer.kind is not LayerKind.MOE_BLOCK:
        return _gated_mlp("mlp", hidden, layer.shape("ffn"), bias=bool(layer.flag("mlp_bias")))
    experts, width = layer.shape("experts"), layer.shape("expert_ffn")
    found = [
        Tensor("mlp.gate.weight", (experts, hidden), Cut.ROUTER),
        Tensor("mlp.experts.gate_up_proj", (experts, 2, width, hidden), Cut.EXPERTS, 2),
        Tensor("mlp.experts.down_proj", (experts, hidden, width), Cut.EXPERTS, 2),
    ]
    shared = layer.flag("shared_ffn")
    if isinstance(shared, int) and shared:
        found += _gated_mlp("mlp.shared_experts", hidden, shared, bias=False)
    return found


def placement_of(tensor: Tensor, name: str, tp: int, rank: int, experts: ExpertSlice) -> Placement:
    """The part of a tensor that one rank of a tensor-parallel group holds.

    name: of the tensor in the whole model.
    """
    whole = Box.whole(tensor.shape)
    box, tag = whole, Tag.REPLICATED
    if tensor.cut is Cut.EXPERTS:
        # Every holder's gradient is of the tokens that it was sent.
        box = whole.cut(0, *even_slice(tensor.shape[0], experts.ep, experts.ep_rank))
        width = tensor.shape[tensor.axis]
        box = box.cut(tensor.axis, *even_slice(width, experts.etp, experts.etp_rank))
        tag = Tag.PARTIAL
    elif tp > 1 and (
        tensor.cut is Cut.SUMMED or (tensor.cut is Cut.ROUTER and not experts.follows_tp(tp))
    ):
        tag = Tag.PARTIAL
    elif tp > 1 and tensor.cut is Cut.HEADS and tensor.heads < tp:
        width = tensor.shape[0] // tensor.heads
        box, tag = whole.cut(0, rank * tensor.heads // tp * width, width), Tag.PARTIAL
    elif tp > 1 and tensor.cut in (Cut.EVEN, Cut.HEADS):
        box = whole.cut(tensor.axis, *even_slice(tensor.shape[tensor.axis], tp, rank))
        tag = Tag.SHARDED
    return Placement(name, tensor.shape, box, tag)


def global_name(model: Model, layer: int, tensor: str) -> str:
    """A tensor's name in the whole model, by layer (0 the embedding) and name in the layer."""
    kind = model.layers[layer].kind
    if kind.is_block:
        return f"model.layers.{layer - 1}.{tensor}"
    return f"{kind.value}.weights" if tensor == "weights" else tensor


def layer_placements(
    model: Model, layer: int, tp: int, rank: int, experts: ExpertSlice | None = None
) -> dict[str, Placement]:
    """What one rank of a tensor-parallel group holds of a layer, by the tensors' names in it.

    experts: of layers with experts; default: none of them tiled.
    """
    slice_ = experts or ExpertSlice()
    return {
        tensor.name: placement_of(tensor, global_name(model, layer, tensor.name), tp, rank, slice_)
        for tensor in tensors_of(model.layers[layer])
    }


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One process of a plan: its rank, and what it is in the plan."""

    rank: int
    template: int
    replica: int
    stage: int
    tp_rank: int
    node: str
    gpu: int


def ranks_of(plan: Plan) -> tuple[RankPlace, ...]:
    """Every process of a plan by rank: templates, then replicas, then stages, then TP ranks."""
    found: list[RankPlace] = []
    for k, r, s, place in plan.places():
        for j, gpu in enumerate(place.gpus):
            found.append(RankPlace(len(found), k, r, s, j, place.node, gpu))
    return tuple(found)


def expert_slice(stage: Stage, replica: int, tp_rank: int) -> ExpertSlice:
    """The share of the routed experts of one device of a stage."""
    return ExpertSlice(stage.ep, stage.etp, replica * stage.tp + tp_rank)


def rank_placements(plan: Plan, place: RankPlace) -> Iterator[tuple[int, str, Placement]]:
    """(layer, tensor's name in the layer, placement) of all that one process holds.

    A tied matrix on a stage with both ends of the model is held once, as the embedding's.
    """
    stage = plan.templates[place.template].stages[place.stage]
    experts = expert_slice(stage, place.replica, place.tp_rank)
    held: set[str] = set()
    for layer in stage.layers:
        found = layer_placements(plan.model, layer, stage.tp, place.tp_rank, experts)
        for tensor, placement in found.items():
            if placement.name not in held:
                held.add(placement.name)
                yield layer, tensor, placement


def not_divisible(layer: LayerType, tp: int, ep: int = 1, etp: int = 1) -> str | None:
    """Why a layer cannot be split over tp ranks (experts over ep and etp), None where it can.

    Attention heads and the width of the MLP divide by tp; key and value heads divide by it, or it
    by them (then they are held more than once). Embedding and head take any tp.
    """
    if not layer.kind.is_block:
        return None
    if layer.flag("tensors"):
        return _not_divisible_as_listed(layer, tp)
    if tp > 1 and layer.flag("attention") == "gqa":
        heads, kv_heads = layer.shape("heads"), layer.shape("kv_heads")
        if heads % tp:
            return f"{heads} attention heads cannot be split over tp={tp}"
        if kv_heads % tp and tp % kv_heads:
            return f"{kv_heads} key and value heads cannot be split over, or shared by, tp={tp}"
    for name, what, parts in (
        ("ffn", "an MLP width", tp),
        ("shared_ffn", "a shared experts' width", tp),
        ("experts", "a number of experts", ep),
        ("expert_ffn", "an experts' width", etp),
    ):
        size = layer.flag(name)
        if isinstance(size, int) and size % parts:
            return f"{what} of {size} cannot be split over {parts} ranks"
    return None


def _not_divisible_as_listed(layer: LayerType, tp: int) -> str | None:
    """The same of a discovered block: heads and widths as its tensor-parallel plan cuts them."""
    if tp == 1:
        return None
    if layer.flag("unsplit"):
        return str(layer.flag("unsplit"))
    for tensor in tensors_of(layer):
        size, heads = tensor.shape[tensor.axis] if tensor.shape else 1, tensor.heads
        if tensor.cut is Cut.HEADS and heads % tp and tp % heads:
            return f"{heads} key and value heads cannot be split over, or shared by, tp={tp}"
        if tensor.cut is Cut.EVEN and (heads or size) % tp:
            what = f"{heads} attention heads" if heads else f"{tensor.name} of width {size}"
            return f"{what} cannot be split over tp={tp}"
    return None
