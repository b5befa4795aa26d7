from __future__ import annotations

from runtime.owners import Ownership
from specs.boxes import Box
from tests.runtime.plans import Pipe, make_plan
from tests.runtime.tiny import tiny_model

Q = "model.layers.0.self_attn.q_proj.weight"
NORM = "model.layers.0.input_layernorm.weight"


def test_one_replica_sums_nothing() -> None:
    plan = make_plan(tiny_model("llama"), [Pipe(1, [(2, 2)], [(2, 1)])])
    ownership = Ownership(plan)
    assert ownership.sets == ()
    assert [bucket.owners for bucket in ownership.buckets(1)] == [(1,)]


def test_replicas_of_one_degree_sum_rank_by_rank_norms_included() -> None:
    plan = make_plan(tiny_model("llama"), [Pipe(1, [(2, 2)], [(2, 1), (2, 1)])])
    ownership = Ownership(plan)
    assert ownership.sets == ((0, 2), (1, 3))
    (bucket,) = ownership.buckets(3)
    scales = {segment.tensor: segment.scale for segment in bucket.segments}
    assert scales[Q] == scales[NORM] == 1.0


def test_a_half_and_a_whole_meet_in_atoms_and_norms_count_once_per_replica() -> None:
    plan = make_plan(
        tiny_model("llama"), [Pipe(1, [(2, 2)], [(2, 1)]), Pipe(1, [(1, 2)], [(2, 1)])]
    )
    ownership = Ownership(plan)
    assert ownership.sets == ((0, 1, 2), (0, 2), (1, 2))
    by_owners = {bucket.owners: bucket for bucket in ownership.buckets(0)}
    assert set(by_owners) == {(0, 1, 2), (0, 2)}
    norm = next(s for s in by_owners[0, 1, 2].segments if s.tensor == NORM)
    assert norm.scale == 0.5
    assert norm.copies == 3
    q = next(s for s in by_owners[0, 2].segments if s.tensor == Q)
    assert q.box == Box((0, 0), (16, 32))
    whole = {s.tensor: s.scale for b in ownership.buckets(2) for s in b.segments}
    assert whole[NORM] == 1.0


def test_heads_held_twice_are_summed_inside_the_replica() -> None:
    plan = make_plan(tiny_model("llama"), [Pipe(1, [(4, 2)], [(2, 1)])])
    assert Ownership(plan).sets == ((0, 1), (2, 3))


def test_all_owners_of_a_bucket_have_its_segments_in_one_order() -> None:
    plan = make_plan(
        tiny_model("mixtral"),
        [Pipe(1, [(2, 1, 2, 1), (1, 1)], [(2, 1), (2, 1)]), Pipe(2, [(1, 2)], [(1, 2)])],
    )
    ownership = Ownership(plan)
    seen: dict[tuple[int, ...], list[tuple[str, Box]]] = {}
    for rank in range(plan.gpus_used):
        for bucket in ownership.buckets(rank):
            parts = [(segment.tensor, segment.box) for segment in bucket.segments]
            assert seen.setdefault(bucket.owners, parts) == parts
