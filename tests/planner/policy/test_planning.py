"""The planners `arachne` and `annealing` by their promises."""

from dataclasses import replace
from time import process_time

import numpy as np
import pytest

from planner.baselines import annealing, arachne
from planner.policy.network import initial_parameters
from planner.policy.planning import Planning, Round, Schedule, Turn
from planner.policy.training.clusters import node_of
from planner.problem import Problem
from planner.profiles import Origin, ProfileSet
from planner.result import Budget, PlanResult, Status
from planner.search import Search
from profiler.estimates.question import Question, answer
from specs.cluster import Cluster
from specs.model import load_model
from specs.profile import Source
from tests.planner.policy.compositions import ODD, cluster_of_sizes, problem_on
from tests.planner.reference import reference_problem

SMALL = Schedule(rollouts=16, batch=16, rounds=(Round(4, 100, 0.004), Round(2, 300, 0.002)))


def small(problem: Problem, budget: Budget, seed: int = 0) -> PlanResult:
    return Planning(problem, "arachne", budget, seed, SMALL).run(initial_parameters(0))


class OfTurns(Planning):
    """Goes on for so many turns."""

    turns = 0

    def _take(self, turn: Turn) -> bool:
        self.taken = [*getattr(self, "taken", []), turn.number]
        if len(self.taken) == self.turns:
            self.schedule = replace(self.schedule, goes_on=False)
        return super()._take(turn)


def iteration_ms(result: PlanResult) -> float:
    assert result.plan is not None
    assert result.plan.prediction is not None
    return result.plan.prediction.iteration_ms


def test_a_plan_is_priced_fits_and_is_the_last_of_the_curve() -> None:
    result = small(reference_problem("llama-3-8b", "mixed-64"), Budget())
    assert result.status is Status.OK
    assert result.plan is not None
    assert result.plan.prediction is not None
    assert result.plan.prediction.fits
    assert result.curve[-1][1] == pytest.approx(iteration_ms(result), rel=1e-9)
    assert [ms for _, ms in result.curve] == sorted((ms for _, ms in result.curve), reverse=True)


def test_the_same_seed_and_ceiling_give_the_same_plan() -> None:
    problem = reference_problem("qwen3-32b", "uneven-52")
    one, two = (small(problem, Budget(evaluations=900), 7) for _ in range(2))
    assert one.plan == two.plan
    assert one.evaluations == two.evaluations


def test_more_evaluations_never_give_a_worse_plan() -> None:
    problem = reference_problem("qwen3-32b", "mixed-64")
    times = [
        iteration_ms(result)
        for n in (60, 120, 300, 800, 2000)
        if (result := small(problem, Budget(evaluations=n), 3)).plan is not None
    ]
    assert len(times) >= 4
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("goes_on", [False, True])
def test_two_threads_find_what_one_finds(goes_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ceiling on evaluations makes turns run one after the other; without one, two at a time."""
    problem = reference_problem("qwen3-32b", "uneven-52")
    schedule = Schedule(16, 16, SMALL.rounds, restarts=5, goes_on=goes_on)
    monkeypatch.setattr("planner.policy.planning._cores", lambda: 2)
    found = []
    for budget in (Budget(), Budget(evaluations=1 << 40)):
        planning = OfTurns(problem, "arachne", budget, 4, schedule)
        planning.turns = 9 if goes_on else 5
        result = planning.run(initial_parameters(0))
        assert planning.threads == (2 if budget.evaluations is None else 1)
        assert planning.taken == list(range(planning.turns))
        found.append((result.plan, result.evaluations, result.curve, result.rejected))
    assert found[0] == found[1]


def test_evaluations_are_a_ceiling() -> None:
    problem = reference_problem("llama-3-8b", "mixed-64")
    for ceiling in (1, 50, 500):
        found = small(problem, Budget(evaluations=ceiling)).evaluations
        # one structure is looked at in its sizes and placements before the count is asked again
        assert found <= ceiling + 10


def test_what_reading_took_comes_out_of_the_budget() -> None:
    assert Budget(3.0, 7).less(0.5) == Budget(2.5, 7)
    assert Budget(1.0).less(5.0) == Budget(0.5)  # half is kept, or there would be no plan
    assert Budget(None, 7).less(5.0) == Budget(None, 7)


@pytest.mark.parametrize("gpus", [1024, 4096])
def test_the_clock_is_looked_at_often_enough_for_small_budgets(
    gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks pass at most 0.2 s of this process's own time, and none is past the end."""
    cluster = cluster_of_sizes(*[(gpu, 8) for gpu in ("h100", "a6000") for _ in range(gpus // 16)])
    looks: list[float] = []
    spent = Search.spent.fget  # type: ignore[attr-defined]

    def looked(search: Search) -> bool:
        looks.append(process_time())
        return bool(spent(search))

    monkeypatch.setattr(Search, "spent", property(looked))
    result = arachne.plan_on(problem_on("llama-3-8b", cluster), Budget(seconds=1.0), 0)
    looks.append(process_time())  # with the plan assembled
    assert result.plan is not None
    assert not result.alternatives  # they are not assembled when the time is over
    assert float(np.diff(looks).max()) < 0.2


def test_going_on_is_at_least_as_good_and_ends_with_the_budget() -> None:
    problem = reference_problem("llama-3-8b", "mixed-64")
    once = small(problem, Budget(), 1)
    schedule = Schedule(SMALL.rollouts, SMALL.batch, SMALL.rounds, goes_on=True)
    ceiling = 3 * once.evaluations
    on = Planning(problem, "arachne", Budget(evaluations=ceiling), 1, schedule)
    longer = on.run(initial_parameters(0))
    assert iteration_ms(longer) <= iteration_ms(once)
    assert once.evaluations < longer.evaluations <= ceiling + 10


def test_a_model_that_does_not_fit_is_refused_with_the_reason() -> None:
    result = small(problem_on("qwen3-32b", cluster_of_sizes(("h100", 4))), Budget())
    assert result.plan is None
    assert result.status is Status.NO_PLAN
    assert "memory" in result.reason


def test_the_shipped_policy_plans_odd_nodes() -> None:
    result = arachne.plan(problem_on("llama-3-8b", ODD[2]), Budget(), 0)
    assert result.status is Status.OK


def test_annealing_plans_without_learning() -> None:
    problem = reference_problem("llama-3-8b", "mixed-64")
    one, two = (annealing.plan(problem, Budget(evaluations=4000), 2) for _ in range(2))
    assert one.plan is not None
    assert one.plan == two.plan
    assert one.plan.planner == "annealing"


def test_six_types_and_ten_thousand_gpus_still_have_a_plan() -> None:
    gpus = ("a100-40gb", "a6000", "h100", "h200", "l40s", "v100-32gb")
    model = load_model("llama-3-8b")
    workload = model.default_workload
    rows = answer(
        Question(
            gpus=gpus,
            model=model,
            tps=(1, 2, 4, 8),
            micro_batches=(1, 2, 4, 8),
            seq_len=workload.seq_len,
            dtype=workload.dtype,
            optimizer=workload.optimizer,
        )
    )
    profiles = ProfileSet.of_rows(rows.layers, rows.links, rows.hosts, Origin(1, Source.ESTIMATED))
    draw = np.random.default_rng(0)
    nodes = []
    while sum(node.gpus for node in nodes) < 10_000:
        gpu = gpus[int(draw.integers(6))]
        nodes.append(node_of(gpu, int(draw.integers(1, 9)), f"n{len(nodes)}", 25.0))
    problem = Problem(model, workload, Cluster("far-out", tuple(nodes)), profiles)
    result = arachne.plan(problem, Budget(evaluations=400), 0)
    assert result.plan is not None
    assert result.plan.prediction is not None
    assert result.plan.prediction.fits
