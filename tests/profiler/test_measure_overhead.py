"""The overhead of a micro-batch, from a written timeline."""

from __future__ import annotations

import pytest

from profiler.measure.overhead import MICRO_BATCH, MICRO_BATCHES, overhead_ms, overhead_plan
from runtime.executor import Step
from runtime.timeline import Action, Kind


def test_overhead_is_what_lies_between_the_layers_up_to_the_gradient_sum() -> None:
    actions = (
        Action(Kind.FORWARD, 0, 1.0, 5.0),
        Action(Kind.BACKWARD, 0, 5.5, 12.0),
        Action(Kind.FORWARD, 1, 12.5, 16.5),
        Action(Kind.BACKWARD, 1, 17.0, 23.5),
        Action(Kind.SEND, -1, 24.0, 24.0),
        Action(Kind.SYNC, -1, 24.0, 30.0),
        Action(Kind.UPDATE, -1, 30.0, 33.0),
    )
    # 24 ms to the sum, 4 + 6.5 + 4 + 6.5 = 21 ms in layers: 3 ms for two micro-batches.
    assert overhead_ms(Step(33.0, 0.0, actions), 2) == pytest.approx(1.5)


def test_the_plan_gives_every_device_a_replica_of_the_same_work() -> None:
    plan = overhead_plan("cpu", 3)
    (template,) = plan.templates
    assert template.depth == 1
    assert [replica.places[0].gpus for replica in template.replicas] == [(0,), (1,), (2,)]
    assert {replica.micro_batches for replica in template.replicas} == {MICRO_BATCHES}
    assert plan.workload.global_batch == 3 * MICRO_BATCHES * MICRO_BATCH
