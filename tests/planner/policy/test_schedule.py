"""What the default schedule does."""

from planner.policy.planning import Schedule, default_schedule, distinct
from planner.policy.start import Start


def moves(schedule: Schedule) -> int:
    return sum(round_.starts * round_.moves for round_ in schedule.rounds)


def test_the_schedule_of_128_gpus_makes_nineteen_thousand_moves() -> None:
    # 8 x 500 + 4 x 2000 + 2 x 3500
    assert moves(default_schedule(128)) == 19_000
    assert default_schedule(128).rollouts == 128


def test_small_and_large_clusters_walk_further() -> None:
    assert moves(default_schedule(16)) == moves(default_schedule(300)) == 28_500
    assert moves(default_schedule(2048)) == 38_000


def test_starts_are_distinct_by_the_kinds_of_the_first_template() -> None:
    def start(ms: float, *kinds: int) -> Start:
        return Start(((kinds, 0, 0, 0),), ms)

    found = distinct([start(5.0, 1, 2), start(3.0, 2, 1), start(4.0, 1, 1, 2), start(9.0, 3)])
    # (1, 2) and (2, 1) hold the same kinds: the faster stays
    assert [one.iteration_ms for one in found] == [3.0, 4.0, 9.0]
