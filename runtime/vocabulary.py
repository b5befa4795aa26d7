"""The two ends of a model, split over the vocabulary: token embedding and cross entropy."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from runtime.collectives import Group, all_reduce, reduce_from_group

# Legend: B sequences, S positions, H hidden width, N = B * S tokens, V vocabulary of this rank.


def embed(tokens_BS: Tensor, weight_VH: Tensor, first: int, group: Group) -> Tensor:
    """Embeddings x_BSH of tokens, of a table whose rows first .. first + V - 1 this rank holds.

    Tokens of other ranks give zeros here; the sum over the group has every row once.
    """
    if group is None:
        return F.embedding(tokens_BS, weight_VH)
    local_BS = tokens_BS - first
    absent_BS = (local_BS < 0) | (local_BS >= weight_VH.shape[0])
    x_BSH = F.embedding(local_BS.masked_fill(absent_BS, 0), weight_VH)
    return reduce_from_group(x_BSH.masked_fill(absent_BS[..., None], 0.0), group)


class _CrossEntropy(torch.autograd.Function):
    """Summed cross entropy of logits of which each rank of the group has a slice of the vocabulary.

    -log softmax(logits)[label] = log(sum exp(logits - m)) - (logits[label] - m), m the maximum: one
    all-reduce for the maxima, one for the sums and the labels' logits together.
    """

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, labels_N: Tensor, first: int, group: Group) -> Tensor:
        maximum_N = logits_NV.amax(dim=-1).float()
        all_reduce(maximum_N, group, dist.ReduceOp.MAX)
        exp_NV = logits_NV.float() - maximum_N[:, None]
        local_N = labels_N - first
        present_N = (local_N >= 0) & (local_N < logits_NV.shape[1])
        local_N = local_N.masked_fill(~present_N, 0)
        label_N = exp_NV.gather(1, local_N[:, None])[:, 0].masked_fill(~present_N, 0.0)
        exp_NV.exp_()
        sums_2N = torch.stack([exp_NV.sum(dim=-1), label_N])
        all_reduce(sums_2N, group)
        ctx.save_for_backward(exp_NV.div_(sums_2N[0][:, None]), local_N, present_N)
        ctx.dtype = logits_NV.dtype
        return (sums_2N[0].log() - sums_2N[1]).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        softmax_NV, local_N, present_N = ctx.saved_tensors
        # The saved softmax becomes the gradient in place: it is the largest tensor of a model.
        softmax_NV.scatter_add_(1, local_N[:, None], -present_N.to(softmax_NV.dtype)[:, None])
        softmax_NV.mul_(grads[0])
        return softmax_NV.to(ctx.dtype), None, None, None


def cross_entropy_sum(logits_NV: Tensor, labels_N: Tensor, first: int, group: Group) -> Tensor:
    """Sum over tokens of the cross entropy in fp32; `first` is the vocabulary's first row here.

    Differentiable once: the backward reuses the saved softmax as the gradient.
    """
    loss = _CrossEntropy.apply(logits_NV, labels_N, first, group)  # type: ignore[no-untyped-call]
    return cast(Tensor, loss)
