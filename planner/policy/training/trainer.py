"""The training: teacher, imitation, reinforcement; metrics and checkpoints on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from planner.policy.composition import Composition
from planner.policy.kernel.rolls import COUNT, TRIED
from planner.policy.network import initial_parameters
from planner.policy.rollout import Episodes, parameters_of
from planner.policy.training.advantages import centred_by, group_advantages, returns_to_go
from planner.policy.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from planner.policy.training.conflicts import without_conflicts
from planner.policy.training.decisions import (
    HeadBatch,
    distinct_rows,
    gather,
    of_row,
    tensors,
)
from planner.policy.training.memory import PlanMemory, Remembered
from planner.policy.training.objective import forced_weight, group_loss, imitation_loss
from planner.policy.training.recipe import FILL_PARTS, Recipe
from planner.policy.training.space import STRUCTURAL, Space
from planner.policy.training.teacher import PlanKinds, teacher_plans
from planner.policy.training.torch_network import PolicyNetwork
from planner.policy.walks import Walker
from planner.problem import Problem
from specs.errors import PlanError

Array = Any
Report = Callable[[dict[str, Any]], None]

MOVE_HEAT, MOVE_COLD = 0.004, 0.0005


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
        self.optimizer = torch.optim.Adam(
            self.network.parameters(), lr=recipe.learning_rate, eps=1e-5
        )
        self.step = 0
        self.taught = False
        self._compositions: dict[int, Composition] = {}
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
        if not self.taught:
            if self.recipe.has("teacher"):
                self._teach()
            self.taught = True
            self._save()
        while self.step < self.recipe.steps and not self.out_of_time:
            self._reinforce()
            self.step += 1
            if self.step % 10 == 0:
                self._save()
        self._save()
        return self.network

    def composition(self, number: int) -> Composition:
        """A composition of the pool, made ready once."""
        if number not in self._compositions:
            self._compositions[number] = Composition(self.problems[number])
        return self._compositions[number]

    # Teacher and imitation

    def _teach(self) -> None:
        found = teacher_plans(self.problems, self.recipe.teacher_moves, self.seed, self.workers)
        for done, (number, plans, evaluations) in enumerate(found, 1):
            self.evaluations += evaluations
            for plan in plans:
                self._remember(number, [plan])
            if done % 20 == 0 or done == len(self.problems):
                self.report({"stage": "teacher", "done": done, "of": len(self.problems)})
        numbers = self.memory.compositions
        batch = min(self.recipe.teacher_batch, len(numbers))
        if not numbers:
            return
        draw = np.random.default_rng([self.seed, 1])
        updates = self.recipe.teacher_epochs * max(1, len(numbers) // batch)
        updates = min(updates, self.recipe.teacher_updates)
        began = self.seconds
        for update in range(updates):
            # Imitation gets at most a third of the time that is left.
            if self.seconds - began > (self.limit_s - began) / 3:
                break
            share = update / updates
            for group in self.optimizer.param_groups:
                group["lr"] = self.recipe.teacher_rate * (1 - 0.95 * share)
            chosen = draw.choice(numbers, batch, replace=False)
            loss = self._imitate([int(n) for n in chosen], 1.0, 1.0)
            if update % 10 == 0:
                self.report(
                    {"stage": "imitation", "done": update, "of": updates, "loss": float(loss)}
                )

    def _imitate(self, numbers: Sequence[int], coefficient: float, most_norm: float) -> float:
        self.optimizer.zero_grad()
        loss = imitation_loss(
            self.network,
            [
                (self.composition(number).summary, plans)
                for number in numbers
                if (plans := self.memory.best(number))
            ],
        )
        (coefficient * loss).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), most_norm)
        self.optimizer.step()
        return float(loss.detach())

    def _remember(self, number: int, plans: Sequence[PlanKinds]) -> None:
        """Replay plans under the masks and keep those that are good, with their decisions."""
        composition = self.composition(number)
        network = parameters_of(self.final_arrays(self.network), composition)
        episodes = self.space.run(
            composition,
            network,
            len(plans),
            np.random.default_rng(0),
            force=self.space.forced(plans, composition),
            keep=True,
        )
        gathered = gather(episodes.decisions)
        times = episodes.last_ms
        for row, plan in enumerate(plans):
            # A plan that the masks forbid, or that packs otherwise here, teaches nothing.
            mine = of_row(gathered, row)
            legal = all(np.isfinite(a["log_probability"]).all() for a in mine.values())
            if not legal or episodes.rolls.whole[row, COUNT] != len(plan):
                continue
            throughput = float(composition.throughput(times[row]))
            if self.memory.wants(number, plan, throughput):
                self.memory.add(number, composition.summary, Remembered(plan, throughput, mine))

    # Reinforcement

    def _reinforce(self) -> None:
        recipe, began = self.recipe, time.perf_counter()
        draw = np.random.default_rng([self.seed, 2, self.step])
        numbers = draw.choice(
            len(self.problems), min(recipe.compositions, len(self.problems)), replace=False
        )
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.between(recipe.learning_rate, recipe.last_learning_rate, self.step)
        groups = [found for n in numbers if (found := self._group(int(n), draw)) is not None]
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
                "step_s": time.perf_counter() - began,
                "seconds": self.seconds,
            }
        )

    def _to_imitate(self, numbers: Sequence[int]) -> list[int]:
        chosen = [n for n in numbers if n in set(self.memory.compositions)]
        if self.recipe.has("neighbour-sil"):
            for number in list(chosen):
                summary = self.composition(number).summary
                chosen += [n for n in self.memory.nearest(summary, chosen) if n not in chosen]
        return chosen

    def _group(self, number: int, draw: np.random.Generator) -> Group | None:
        recipe, composition = self.recipe, self.composition(number)
        if not composition.plannable:
            return None
        network = parameters_of(self.final_arrays(self.network), composition)
        share = (
            recipe.between(recipe.forced, recipe.last_forced, self.step)
            if recipe.has("forced-depth")
            else 0.0
        )
        before = composition.engine.evaluations
        episodes = self.space.run(
            composition,
            network,
            recipe.rollouts,
            draw,
            force=_exploration(recipe, share, draw),
            keep=True,
        )
        gathered = gather(episodes.decisions)
        rolls = episodes.rolls
        count, tried = rolls.whole[:, COUNT], rolls.whole[:, TRIED]
        plans = [self.space.plan(episodes, i, int(tried[i])) for i in range(recipe.rollouts)]
        distinct = distinct_rows(plans)
        self._improve(number, episodes, draw)
        self.evaluations += composition.engine.evaluations - before
        throughput = np.where(rolls.times > 0, composition.throughput(np.abs(rolls.times)), 0.0)
        advantages, weights = self._advantages(
            gathered, throughput, count, tried, rolls.choices[:, :, 0], distinct, share
        )
        best = composition.throughput(episodes.best_ms)
        last = composition.throughput(episodes.last_ms)
        known = self.memory.best(number)
        top = max(known[0][0].throughput if known else 0.0, float(best.max()), 1e-9)
        return Group(
            number,
            torch.tensor(composition.summary, dtype=torch.float32),
            tensors(gathered) if advantages else {},
            advantages,
            weights,
            {
                "mean_quality": float(last.mean() / top),
                "best_quality": float(best.max() / top),
                "fits": float((count > 0).mean()),
                "invalid": float(1 - count.sum() / max(int(tried.sum()), 1)),
                "duplicates": float(1 - distinct.mean()),
                "depth": float(rolls.choices[:, 0, 0].mean()),
                "templates": float(count.mean()),
                "best_prefix": float(
                    np.where(rolls.times > 0, rolls.times, np.inf).argmin(axis=1).mean() + 1
                ),
            },
        )

    def final_arrays(self, network: PolicyNetwork) -> dict[str, Array]:
        """The parameters to plan with; without FiLM its generator is zero."""
        arrays = network.arrays()
        if not self.recipe.has("film"):
            for name in ("condition2.weight", "condition2.bias"):
                arrays[name] = np.zeros_like(arrays[name])
        return arrays

    def _improve(self, number: int, episodes: Episodes, draw: np.random.Generator) -> None:
        """Put the best plan of a group in the memory, and what local moves make of it."""
        if not self.recipe.has("sil"):
            return
        times = episodes.best_ms
        row = int(times.argmin())
        if not np.isfinite(times[row]):
            return
        prefixes = np.where(episodes.rolls.times[row] > 0, episodes.rolls.times[row], np.inf)
        plan = self.space.plan(episodes, row, int(prefixes.argmin()) + 1)
        plans = [plan]
        if self.recipe.has("local-moves"):
            walker = Walker(episodes.composition)
            _, best = walker.walk(
                walker.start(plan, [0] * len(plan)),
                self.recipe.moves,
                MOVE_HEAT,
                MOVE_COLD,
                int(draw.integers(1 << 31)),
            )
            better = tuple(kinds for kinds, *_ in best.templates)
            if better and better != plan:
                plans.append(better)
        self._remember(number, plans)

    def _advantages(
        self,
        gathered: dict[str, dict[str, Array]],
        throughput: Array,
        count: Array,
        tried: Array,
        depths: Array,
        distinct: Array,
        share: float,
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Advantage and weight of every decision; empty where the group teaches nothing."""
        recipe = self.recipe
        penalty = recipe.penalty if recipe.has("first-step-penalty") else 0.0
        risk = recipe.has("risk") and self.step >= recipe.risk_from * recipe.steps
        to_go = returns_to_go(throughput, tried, count, penalty)
        of_depth = np.full(to_go.shape, np.nan)
        for k in range(to_go.shape[1]):
            rows = np.flatnonzero(~np.isnan(to_go[:, k]))
            if len(rows) < 2:
                continue
            found = group_advantages(to_go[rows, k], distinct[rows], risk=risk)
            if found is not None:
                of_depth[rows, k] = found
        of_stage = of_depth.copy()
        if recipe.has("centred-stages"):
            for k in range(to_go.shape[1]):
                rows = np.flatnonzero(~np.isnan(of_depth[:, k]))
                if len(rows):
                    of_stage[rows, k] = centred_by(
                        of_depth[rows, k], depths[rows, k], distinct[rows]
                    )
        if np.isnan(of_depth).all():
            return {}, {}
        advantages, weights = {}, {}
        for head, arrays in gathered.items():
            source = of_depth if head == "depth" else of_stage
            values = source[arrays["rows"], arrays["template"]]
            advantages[head] = torch.tensor(values, dtype=torch.float32)
            weight = np.ones(len(values))
            legal = arrays["mask"].sum(axis=1)
            for i in range(len(values)):
                forced = 0.0
                if head == "depth" and arrays["template"][i] == 0:
                    forced = share
                elif head == "type" and arrays["rows"][i] == 0 and recipe.has("uniform-type"):
                    forced = 1.0
                if forced:
                    weight[i] = forced_weight(
                        float(arrays["log_probability"][i]),
                        1.0 / legal[i],
                        forced,
                        recipe.most_weight,
                    )
            weights[head] = torch.tensor(weight, dtype=torch.float32)
        return advantages, weights

    def _update(self, groups: Sequence[Group]) -> tuple[float, float]:
        recipe = self.recipe
        entropy = recipe.between(recipe.entropy, recipe.last_entropy, self.step)
        if recipe.has("risk") and self.step >= recipe.risk_from * recipe.steps:
            entropy *= 2
        parameters = list(self.network.parameters())
        kl = spread = 0.0
        for _ in range(recipe.epochs):
            gradients = []
            kl = spread = 0.0
            for group in groups:
                self.optimizer.zero_grad()
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
            self.optimizer.step()
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
        moments = {}
        for name, p in self.network.values.items():
            state = self.optimizer.state.get(p, {})
            for key in ("exp_avg", "exp_avg_sq", "step"):
                if key in state:
                    moments[f"{key}.{name}"] = state[key].numpy()
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
                if f"exp_avg.{key}" in found.moments:
                    self.optimizer.state[p] = {
                        part: torch.from_numpy(found.moments[f"{part}.{key}"].copy())
                        for part in ("exp_avg", "exp_avg_sq", "step")
                    }
        for number, plan in found.plans:
            self._remember(number, [plan])


def _exploration(recipe: Recipe, share: float, draw: np.random.Generator) -> Any:
    """Choices forced on rollouts: even first depths, and one rollout with even GPU types."""
    first = [True]

    def force(head: str, rows: Array, logp: Array, mask: Array) -> Array | None:
        if head == "depth" and first[0]:
            first[0] = False
            said = np.full(len(rows), -1)
            for a in np.flatnonzero(draw.random(len(rows)) < share):
                said[a] = draw.choice(np.flatnonzero(mask[a]))
            return said
        if head == "type" and recipe.has("uniform-type"):
            said = np.full(len(rows), -1)
            for a in np.flatnonzero(rows == 0):
                said[a] = draw.choice(np.flatnonzero(mask[a]))
            return said
        return None

    return force
