"""What the default schedule does."""

from benchmarks.held_out import even, trained
from planner.policy.network import initial_parameters
from planner.policy.planning import Planning, Round, Schedule, default_schedule, distinct
from planner.policy.start import Start
from planner.problem import Problem
from planner.result import Budget


def moves(schedule: Schedule) -> int:
    return schedule.restarts * sum(round_.starts * round_.moves for round_ in schedule.rounds)


def test_the_schedule_of_128_gpus_makes_eighty_thousand_moves() -> None:
    # 8 x (4 x 750 + 2 x 2000 + 3000)
    assert moves(default_schedule(128)) == 80_000
    assert default_schedule(128).rollouts * default_schedule(128).restarts == 256


def test_large_clusters_walk_further() -> None:
    assert moves(default_schedule(16)) == 160_000  # a turn takes little there: twice as many
    assert moves(default_schedule(200)) == 80_000
    assert moves(default_schedule(300)) == 120_000
    assert moves(default_schedule(2048)) == 160_000


def test_a_model_with_experts_is_priced_about_as_often_as_one_without() -> None:
    schedule = Schedule(rollouts=16, batch=16, rounds=(Round(1, 400, 0.02),))
    cluster = even("even", {"h100": 64}, 4)
    priced = {}
    for model in ("llama-3-8b", "mixtral-8x7b"):
        one = trained(model)
        problem = Problem(one.model, one.workload, cluster, one.profiles)
        planning = Planning(problem, "arachne", Budget(), 0, schedule)
        planning.run(initial_parameters(0))
        priced[model] = planning.search.evaluations
    # Rollouts price all tilings; a walk takes at most two prices a move, and what one move begins.
    assert priced["mixtral-8x7b"] < 4 * priced["llama-3-8b"]


def test_starts_are_distinct_by_the_kinds_of_the_first_template() -> None:
    def start(ms: float, *kinds: int) -> Start:
        return Start(((kinds, 0, 0, 0, ()),), ms)

    found = distinct([start(5.0, 1, 2), start(3.0, 2, 1), start(4.0, 1, 1, 2), start(9.0, 3)])
    # (1, 2) and (2, 1) hold the same kinds: the faster stays
    assert [one.iteration_ms for one in found] == [3.0, 4.0, 9.0]
