"""The mixture-of-experts part of a block: routing, dispatch, this rank's experts, combine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from runtime.collectives import (
    Group,
    all_to_all,
    copy_to_group,
    exchange_counts,
    gather_counts,
    gather_rows,
    gather_slices,
    group_size,
    reduce_from_group,
    reduce_scatter_rows,
    scatter_slices,
)
from specs.layout import ExpertSlice

# Legend: N tokens, H hidden width, K experts a token, R = rows (a token at one of its experts),
# E experts of this rank.


@dataclass(frozen=True)
class ExpertTiling:
    """Which experts this rank holds, and with whom it shares the rest (DESIGN section 13, 21).

    ep_group: the EP ranks with the same slice of the width; etp_group: the ETP ranks with the same
    experts; None for a group of one. stand_in: the other ranks of the EP group do not exist (a
    layer is profiled in TP-many processes): instead of being exchanged, this rank's own rows are
    repeated until each of its experts has the balanced share of rows it would be sent.
    """

    slice: ExpertSlice = field(default_factory=ExpertSlice)
    ep_group: Group = None
    etp_group: Group = None
    stand_in: bool = False


class ParallelMoe(nn.Module):
    """Routed (and shared) experts of a block of `transformers`, tiled: x_BSH -> x_BSH.

    Where the experts' width is cut over the tensor-parallel group itself, every rank has every
    token, and partial outputs are summed. Otherwise each tensor-parallel rank routes its 1/TP of
    the tokens: all-to-all to the ranks that hold their experts, all-gather over the ETP group, the
    experts, reduce-scatter, all-to-all back, and an all-gather over the TP group.
    """

    def __init__(self, moe: Any, tp_group: Group, tiling: ExpertTiling) -> None:
        super().__init__()
        self.gate = moe.gate
        self.experts = moe.experts
        shared = getattr(moe, "shared_experts", None)
        if shared is not None:
            self.shared_experts = shared
        self.tp_group = tp_group
        self.tiling = tiling
        self.total_experts = int(self.gate.weight.shape[0])

    def forward(self, x_BSH: Tensor) -> Tensor:
        """The block's feed-forward output, whole on every rank of the tensor-parallel group."""
        x_NH = x_BSH.flatten(0, 1)
        if self.tiling.slice.follows_tp(group_size(self.tp_group)):
            _, weights_NK, experts_NK = self.gate(x_NH)
            x_NH = copy_to_group(x_NH, self.tp_group)
            # Routing weights multiply partial outputs, so their gradients are partial as well.
            weights_NK = copy_to_group(weights_NK, self.tp_group)
            y_NH = self._combine(x_NH, experts_NK, weights_NK, self._local)
            y_NH = reduce_from_group(y_NH, self.tp_group)
        else:
            y_NH = self._on_own_tokens(x_NH)
        y_BSH = y_NH.view_as(x_BSH)
        return y_BSH + self.shared_experts(x_BSH) if hasattr(self, "shared_experts") else y_BSH

    def _on_own_tokens(self, x_NH: Tensor) -> Tensor:
        tp, tokens = group_size(self.tp_group), x_NH.shape[0]
        if tp > 1:
            x_NH = F.pad(x_NH, (0, 0, 0, -tokens % tp))
            x_NH = scatter_slices(x_NH, self.tp_group)
        _, weights_NK, experts_NK = self.gate(x_NH)
        y_NH = self._combine(x_NH, experts_NK, weights_NK, self._exchange)
        return gather_slices(y_NH, self.tp_group)[:tokens] if tp > 1 else y_NH

    def _combine(
        self,
        x_NH: Tensor,
        experts_NK: Tensor,
        weights_NK: Tensor,
        run: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        """Rows sorted by expert through `run` (with counts per expert), then their weighted sum."""
        top_k = experts_NK.shape[1]
        expert_R = experts_NK.flatten()
        order_R = expert_R.argsort(stable=True)
        token_R = order_R // top_k
        counts = torch.bincount(expert_R, minlength=self.total_experts)
        y_RH = run(x_NH[token_R], counts)
        y_RH = y_RH * weights_NK.flatten()[order_R, None].to(y_RH.dtype)
        return torch.zeros_like(x_NH).index_add(0, token_R, y_RH)

    def _local(self, rows_RH: Tensor, counts: Tensor) -> Tensor:
        """This rank's experts on rows that are sorted by expert."""
        gate_up, down = self.experts.gate_up_proj, self.experts.down_proj
        out = []
        for e, rows in enumerate(torch.split(rows_RH, counts.tolist())):
            gate, up = F.linear(rows, gate_up[e]).chunk(2, dim=-1)
            out.append(F.linear(self.experts.act_fn(gate) * up, down[e]))
        return torch.cat(out)

    def _exchange(self, rows_RH: Tensor, counts: Tensor) -> Tensor:
        """Rows to the ranks that hold their experts, through them, and back in the same order."""
        if self.tiling.stand_in:
            return self._stand_in(rows_RH)
        ep, group = self.tiling.slice.ep, self.tiling.ep_group
        sent = counts.view(ep, -1)
        if ep == 1:
            return self._widths(rows_RH, sent)
        got = exchange_counts(sent.contiguous(), group)
        in_rows, out_rows = sent.sum(1).tolist(), got.sum(1).tolist()
        rows_RH = all_to_all(rows_RH, out_rows, in_rows, group)
        return all_to_all(self._widths(rows_RH, got), in_rows, out_rows, group)

    def _widths(self, rows_RH: Tensor, counts_SE: Tensor) -> Tensor:
        """Rows of S senders, each sorted by expert, through slices of the experts' width."""
        group = self.tiling.etp_group
        etp = self.tiling.slice.etp
        if etp == 1 or group is None:
            return self._by_expert(rows_RH, counts_SE)
        own, senders = rows_RH.shape[0], counts_SE.shape[0]
        counts = gather_counts(counts_SE.flatten(), group).view(etp * senders, -1)
        totals = counts.view(etp, -1).sum(1).tolist()
        most = max(totals)
        padded = gather_rows(F.pad(rows_RH, (0, 0, 0, most - own)), group).view(etp, most, -1)
        together = torch.cat([padded[i, :n] for i, n in enumerate(totals)])
        parts = torch.split(self._by_expert(together, counts), totals)
        partial = torch.cat([F.pad(part, (0, 0, 0, most - part.shape[0])) for part in parts])
        return reduce_scatter_rows(partial, group)[:own]

    def _by_expert(self, rows_RH: Tensor, counts_SE: Tensor) -> Tensor:
        """Rows of several senders through the experts, in the order they came."""
        if counts_SE.shape[0] == 1:
            return self._local(rows_RH, counts_SE[0])
        experts = counts_SE.shape[1]
        expert_R = torch.arange(experts, device=rows_RH.device).repeat(counts_SE.shape[0])
        expert_R = expert_R.repeat_interleave(counts_SE.flatten())
        order_R = expert_R.argsort(stable=True)
        y_RH = self._local(rows_RH[order_R], counts_SE.sum(0))
        return torch.empty_like(y_RH).index_copy(0, order_R, y_RH)

    def _stand_in(self, rows_RH: Tensor) -> Tensor:
        """The balanced load of this rank's experts, made of its own rows again and again.

        Rows per expert: R * EP * ETP / E over all E experts (DESIGN section 13, 22), rounded up.
        """
        tile, rows = self.tiling.slice, rows_RH.shape[0]
        here = self.total_experts // tile.ep
        senders = tile.ep if self.tiling.etp_group is not None else tile.ep * tile.etp
        each = -(-rows * senders // self.total_experts)
        index = torch.arange(each * here, device=rows_RH.device) % rows
        counts = torch.full((1, here), each, device=rows_RH.device)
        y_RH = self._widths(rows_RH[index], counts)
        return torch.zeros_like(rows_RH).index_add(0, index, y_RH)
