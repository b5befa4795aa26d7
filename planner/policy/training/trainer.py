"""The training: teacher, imitation, reinforcement; metrics and checkpoints on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from planner.policy.network import initial_parameters
from planner.policy.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from planner.policy.training.conflicts import without_conflicts
from planner.policy.training.decisions import HeadBatch, tensors
from planner.policy.training.memory import PlanMemory
from planner.policy.training.objective import group_loss, imitation_loss
from planner.policy.training.recipe import FILL_PARTS, Recipe
from planner.policy.training.replay import Laying, lay_anew
from planner.policy.training.sampling import Asked, Sampled, sample
from planner.policy.training.space import STRUCTURAL, Space
from planner.policy.training.teacher import Lesson, teach
from planner.policy.training.torch_network import PolicyNetwork
from planner.policy.training.workers import Workers
from planner.problem import Problem
from specs.errors import PlanError

Array = Any
Report = Callable[[dict[str, Any]], None]

SAVED_EVERY = 10  # steps
TAUGHT_AT_ONCE = 40  # compositions, between two looks at the clock
IMITATION, REINFORCEMENT = "imitation", "reinforcement"  # what an optimizer is for
MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass
class Group:
    """Rollouts of one composition, ready for the objective."""

    number: int
    summary: torch.Tensor
    batches: dict[str, HeadBatch]
    advantages: dict[str, torch.Tensor]
    weights: dict[str, torch.Tensor]
    facts: dict[str, float] = field(default_factory=dict)


class Trainer:
    """One training from a seed; `run` does all that is left of it."""

    def __init__(
        self,
        problems: Sequence[Problem],
        recipe: Recipe,
        seed: int,
        *,
        space: Space = STRUCTURAL,
        workers: int = 1,
        checkpoint: Path | None = None,
        report: Report = lambda facts: None,
        limit_s: float = float("inf"),
    ) -> None:
        if space is not STRUCTURAL and recipe.parts & FILL_PARTS:
            raise PlanError(
                f"{space.planner} is trained without {', '.join(sorted(recipe.parts & FILL_PARTS))}"
                ", which work by the fill: use the recipe paper"
            )
        self.problems = list(problems)
        self.space = space
        self.recipe = recipe
        self.seed = seed
        self.workers = workers
        self.checkpoint = checkpoint
        self.report = report
        self.limit_s = limit_s
        self.started = time.perf_counter()
        self.spent_before = 0.0
        self.evaluations = 0
        self.memory = PlanMemory()
        self.network = PolicyNetwork(initial_parameters(seed, space.heads), film=recipe.has("film"))
        # One for each loss: imitation's gradients are so much larger that moments shared with
        # them would leave reinforcement next to no step.
        self.optimizers = {
            name: torch.optim.Adam(self.network.parameters(), lr=recipe.learning_rate, eps=1e-5)
            for name in (IMITATION, REINFORCEMENT)
        }
        self.step = 0
        self.taught = 0  # rounds of the teacher
        self._resumed: list[tuple[int, Any]] = []
        self._surgery = torch.Generator().manual_seed(seed)
        if checkpoint is not None and checkpoint.exists():
            self._resume(read_checkpoint(checkpoint, recipe, seed))

    @property
    def seconds(self) -> float:
        """Wall clock of this training so far, also before a resume."""
        return self.spent_before + time.perf_counter() - self.started

    @property
    def out_of_time(self) -> bool:
        """Whether the ceiling on wall clock is reached."""
        return self.seconds >= self.limit_s

    def run(self) -> PolicyNetwork:
        """Everything that is left: teacher and imitation, then reinforcement."""
        with Workers(self.problems, self.workers) as workers:
            self._remember_again(workers)
            while self.recipe.has("teacher") and self.taught < len(self.recipe.teacher_walks):
                self._teach(workers, self.taught)
                self._imitate_teacher(self.taught)
                self.taught += 1
                self._save()
            while self.step < self.recipe.steps and not self.out_of_time:
                self._reinforce(workers)
                self.step += 1
                if self.step % SAVED_EVERY == 0:
                    self._save()
            self._save()
        return self.network

    def _remember_again(self, workers: Workers) -> None:
        """Lay the plans of a checkpoint anew, with the decisions that lead to them."""
        plans: dict[int, list[Any]] = {}
        for number, plan in self._resumed:
            plans.setdefault(number, []).append(plan)
        tasks = [(number, Laying(self.space, found)) for number, found in plans.items()]
        for number, (summary, found) in workers.each(lay_anew, tasks):
            for one in found:
                self.memory.add(number, summary, one)
        self._resumed = []

    # Teacher and imitation

    def _teach(self, workers: Workers, round_: int) -> None:
        """Walks from rollouts on every composition: the first ones are of the untrained network.

        Compositions that half of the time left does not reach are left out.
        """
        recipe, parameters = self.recipe, self.final_arrays(self.network)
        walks = recipe.teacher_walks[round_]
        began, count = self.seconds, len(self.problems)
        for first in range(0, count, TAUGHT_AT_ONCE):
            if self.seconds - began > (self.limit_s - began) / 2:
                break
            numbers = range(first, min(first + TAUGHT_AT_ONCE, count))
            lessons = [
                (n, Lesson(recipe.teacher_moves, walks, (self.seed, 3, round_, n), parameters))
                for n in numbers
            ]
            for number, taught in workers.each(teach, lessons):
                self.evaluations += taught.evaluations
                for one in taught.plans:
                    self.memory.add(number, taught.summary, one)
            self.report({"stage": "teacher", "done": numbers.stop, "of": count})

    def _imitate_teacher(self, round_: int) -> None:
        numbers = self.memory.compositions
        batch = min(self.recipe.teacher_batch, len(numbers))
        if not numbers:
            return
        draw = np.random.default_rng([self.seed, 1, round_])
        updates = self.recipe.teacher_epochs * max(1, len(numbers) // batch)
        began = self.seconds
        for update in range(updates):
            # Imitation gets at most a third of the time that is left.
            if self.seconds - began > (self.limit_s - began) / 3:
                break
            share = update / updates
            self._set_rate(IMITATION, self.recipe.teacher_rate * (1 - 0.95 * share))
            chosen = draw.choice(numbers, batch, replace=False)
            loss = self._imitate([int(n) for n in chosen], 1.0, 1.0)
            if update % 10 == 0:
                self.report(
                    {"stage": "imitation", "done": update, "of": updates, "loss": float(loss)}
                )

    def _imitate(self, numbers: Sequence[int], coefficient: float, most_norm: float) -> float:
        optimizer = self.optimizers[IMITATION]
        optimizer.zero_grad()
        loss = imitation_loss(
            self.network,
            [
                (self.memory.summary(number), plans)
                for number in numbers
                if (plans := self.memory.best(number))
            ],
        )
        (coefficient * loss).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), most_norm)
        optimizer.step()
        return float(loss.detach())

    def _set_rate(self, name: str, rate: float) -> None:
        for group in self.optimizers[name].param_groups:
            group["lr"] = rate

    # Reinforcement

    def _reinforce(self, workers: Workers) -> None:
        recipe, began = self.recipe, time.perf_counter()
        draw = np.random.default_rng([self.seed, 2, self.step])
        numbers = draw.choice(
            len(self.problems), min(recipe.compositions, len(self.problems)), replace=False
        )
        rate = recipe.between(recipe.learning_rate, recipe.last_learning_rate, self.step)
        for name in self.optimizers:
            self._set_rate(name, rate)
        parameters = self.final_arrays(self.network)
        tasks = [
            (
                int(n),
                Asked(self.space, recipe, self.step, (self.seed, 4, self.step, int(n)), parameters),
            )
            for n in numbers
        ]
        groups = [
            self._group(number, found)
            for number, found in workers.each(sample, tasks)
            if found is not None
        ]
        sampled_s = time.perf_counter() - began
        facts: dict[str, list[float]] = {}
        for one in groups:
            for name, value in one.facts.items():
                facts.setdefault(name, []).append(value)
        learning = [one for one in groups if one.batches]
        kl, spread = self._update(learning) if learning else (0.0, 0.0)
        imitated = None
        if recipe.has("sil") and self.step % recipe.imitation_every == 0:
            chosen = self._to_imitate([one.number for one in groups])
            if chosen:
                imitated = self._imitate(chosen, recipe.imitation, recipe.most_norm)
        self.report(
            {
                "stage": "reinforcement",
                "done": self.step + 1,
                "of": recipe.steps,
                "kl": kl,
                "entropy": spread,
                "imitation_loss": imitated,
                "groups": len(learning),
                **{name: float(np.mean(values)) for name, values in facts.items()},
                "evaluations": self.evaluations,
                "sampled_s": sampled_s,
                "step_s": time.perf_counter() - began,
                "seconds": self.seconds,
            }
        )

    def _to_imitate(self, numbers: Sequence[int]) -> list[int]:
        chosen = [n for n in numbers if self.memory.best(n)]
        if self.recipe.has("neighbour-sil"):
            for number in list(chosen):
                near = self.memory.nearest(self.memory.summary(number), chosen)
                chosen += [n for n in near if n not in chosen]
        return chosen

    def _group(self, number: int, found: Sampled) -> Group:
        """Keep what a group found, and make it ready for the objective."""
        for one in found.improved:
            self.memory.add(number, found.summary, one)
        self.evaluations += found.evaluations
        known = self.memory.best(number)
        top = max(known[0][0].throughput if known else 0.0, float(found.best.max()), 1e-9)
        qualities = {
            "mean_quality": float(found.last.mean() / top),
            "best_quality": float(found.best.max() / top),
        }
        return Group(
            number,
            torch.tensor(found.summary, dtype=torch.float32),
            tensors(found.decisions),
            {head: torch.tensor(v, dtype=torch.float32) for head, v in found.advantages.items()},
            {head: torch.tensor(v, dtype=torch.float32) for head, v in found.weights.items()},
            qualities | found.facts,
        )

    def final_arrays(self, network: PolicyNetwork) -> dict[str, Array]:
        """The parameters to plan with; without FiLM its generator is zero."""
        arrays = network.arrays()
        if not self.recipe.has("film"):
            for name in ("condition2.weight", "condition2.bias"):
                arrays[name] = np.zeros_like(arrays[name])
        return arrays

    def _update(self, groups: Sequence[Group]) -> tuple[float, float]:
        recipe = self.recipe
        entropy = recipe.between(recipe.entropy, recipe.last_entropy, self.step)
        if recipe.has("risk") and self.step >= recipe.risk_from * recipe.steps:
            entropy *= 2
        optimizer, parameters = self.optimizers[REINFORCEMENT], list(self.network.parameters())
        kl = spread = 0.0
        for _ in range(recipe.epochs):
            gradients = []
            kl = spread = 0.0
            for group in groups:
                optimizer.zero_grad()
                loss, moved, own = group_loss(
                    self.network,
                    group.summary,
                    group.batches,
                    group.advantages,
                    group.weights,
                    recipe,
                    entropy,
                )
                loss.backward()  # type: ignore[no-untyped-call]
                gradients.append(
                    torch.cat(
                        [
                            (torch.zeros_like(p) if p.grad is None else p.grad).flatten()
                            for p in parameters
                        ]
                    )
                )
                kl += moved / len(groups)
                spread += own / len(groups)
            if kl > recipe.stop_kl:
                break
            if recipe.has("pcgrad"):
                gradients = without_conflicts(gradients, self._surgery)
            whole = torch.stack(gradients).mean(dim=0)
            at = 0
            for p in parameters:
                p.grad = whole[at : at + p.numel()].view_as(p).clone()
                at += p.numel()
            torch.nn.utils.clip_grad_norm_(parameters, recipe.most_norm)
            optimizer.step()
        return kl, spread

    # Checkpoints

    def _save(self) -> None:
        if self.checkpoint is None:
            return
        plans = [
            (number, one.plan)
            for number in self.memory.compositions
            for one, _ in self.memory.best(number)
        ]
        moments = {
            f"{whose}.{moment}.{name}": optimizer.state[p][moment].numpy()
            for whose, optimizer in self.optimizers.items()
            for name, p in self.network.values.items()
            for moment in MOMENTS
            if p in optimizer.state
        }
        write_checkpoint(
            self.checkpoint,
            Checkpoint(
                self.recipe,
                self.seed,
                self.step,
                self.taught,
                self.seconds,
                self.evaluations,
                plans,
                self.network.arrays(),
                moments,
            ),
        )

    def _resume(self, found: Checkpoint) -> None:
        self.step, self.taught = found.step, found.taught
        self.spent_before, self.evaluations = found.seconds, found.evaluations
        with torch.no_grad():
            for key, p in self.network.values.items():
                p.copy_(torch.from_numpy(found.parameters[key.replace("__", ".")]))
                for whose, optimizer in self.optimizers.items():
                    if f"{whose}.step.{key}" in found.moments:
                        optimizer.state[p] = {
                            moment: torch.from_numpy(
                                found.moments[f"{whose}.{moment}.{key}"].copy()
                            )
                            for moment in MOMENTS
                        }
        self._resumed = list(found.plans)
