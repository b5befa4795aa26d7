"""Which keys a question has, in which order, and which arithmetic alone refuses."""

from __future__ import annotations

from profiler.measure.bench import copies_of
from profiler.measure.defaults import default_model, default_tps
from profiler.measure.entries import Question, entries_of
from profiler.measure.messages import key_document, key_of
from specs.model import load_model
from specs.profile import EntryStatus
from specs.topology import Topology
from specs.workload import DType, Optimizer, Recompute


def question(model: str = "tiny-llama-test", **changes: object) -> Question:
    loaded = load_model(model)
    workload = loaded.default_workload
    return Question(
        **{
            "gpu": "cpu",
            "topology": Topology.HOST,
            "devices": 2,
            "model": loaded,
            "tps": (1, 2),
            "micro_batches": (1, 2, 4),
            "seq_len": workload.seq_len,
            "dtype": workload.dtype,
            "optimizer": workload.optimizer,
            **changes,
        }  # type: ignore[arg-type]
    )


def test_every_layer_type_meets_every_degree_and_micro_batch() -> None:
    entries, refusals = entries_of(question())
    assert refusals == []
    assert len(entries) == 3 * 2 * 3
    assert len({entry.key for entry in entries}) == 18


def test_recomputation_doubles_the_keys() -> None:
    both = (Recompute.NONE, Recompute.FULL)
    entries, _ = entries_of(question(recomputes=both))
    assert len(entries) == 36
    assert {entry.key.recompute for entry in entries} == set(both)


def test_the_cheapest_come_first() -> None:
    entries, _ = entries_of(question())
    costs = [entry.expected_s for entry in entries]
    assert costs == sorted(costs)
    assert entries[0].layer_type.kind == "embedding"
    assert entries[-1].layer_type.kind == "block"
    assert entries[-1].key.micro_batch == 4
    assert entries[-1].key.tp == 1  # the whole layer on one device takes longest


def test_a_degree_beyond_the_host_is_refused_with_what_the_host_has() -> None:
    entries, refusals = entries_of(question(tps=(1, 4)))
    assert {entry.key.tp for entry in entries} == {1}
    assert len(refusals) == 9
    assert {refusal.status for refusal in refusals} == {EntryStatus.NOT_ENOUGH_DEVICES}
    assert refusals[0].reason == "tp=4 needs 4 devices, this host has 2 cores"


def test_a_degree_that_does_not_divide_refuses_the_block_and_not_its_ends() -> None:
    entries, refusals = entries_of(question(devices=8, tps=(3,)))
    assert {refusal.status for refusal in refusals} == {EntryStatus.NOT_DIVISIBLE}
    assert len(refusals) == 3
    assert "8 attention heads" in refusals[0].reason
    assert {entry.layer_type.kind.value for entry in entries} == {"embedding", "head"}


def test_experts_are_split_by_width_within_the_tensor_parallel_group() -> None:
    entries, _ = entries_of(question("mixtral-8x7b", devices=4, tps=(1, 4), micro_batches=(1,)))
    tilings = {
        (entry.layer_type.kind.value, entry.key.tp): (entry.key.ep, entry.key.etp)
        for entry in entries
    }
    assert tilings["moe-block", 4] == (1, 4)
    assert tilings["moe-block", 1] == (1, 1)
    assert tilings["head", 4] == (1, 1)


def test_tilings_come_beside_the_untiled_form() -> None:
    entries, refusals = entries_of(
        question(
            "mixtral-8x7b", devices=4, tps=(2,), micro_batches=(1,), eps=(1, 4, 8, 16), etps=(1, 8)
        )
    )
    moe = {(e.key.ep, e.key.etp) for e in entries if e.layer_type.kind == "moe-block"}
    assert moe == {(1, 2), (1, 1), (4, 1), (8, 1)}  # 16 does not divide 8 experts
    assert {(r.key.ep, r.key.etp) for r in refusals} == {(1, 8), (4, 8), (8, 8)}
    assert refusals[0].reason == "etp=8 needs 8 devices, this host has 4 cores"


def test_groups_that_cut_across_each_other_are_refused() -> None:
    _, refusals = entries_of(
        question("mixtral-8x7b", devices=8, tps=(4,), micro_batches=(1,), etps=(7,))
    )
    assert [r.reason for r in refusals] == [
        "tp=4 and etp=7 make no whole groups: one must divide the other"
    ]


def test_equal_questions_have_one_origin_and_others_another() -> None:
    assert question().origin == question().origin
    assert question().origin.startswith(
        "arachne-prof run --gpu cpu --model tiny-llama-test --tp 1,2 --micro-batch 1,2,4 "
        "--seq-len 128 --dtype fp32 --recompute none --optimizer adamw"
    )
    others = [
        question(tps=(1,)),
        question(micro_batches=(1, 2)),
        question(seq_len=64),
        question(dtype=DType.BF16),
        question(optimizer=Optimizer.SGD),
        question(recomputes=(Recompute.FULL,)),
        question(eps=(1, 2)),
    ]
    assert len({q.origin for q in [question(), *others]}) == 8


def test_defaults_are_the_small_model_on_cpu_and_powers_of_two() -> None:
    assert default_model("cpu") == "tiny-llama-test"
    assert default_model("h100") == "llama-3-8b"
    assert default_tps(1) == (1,)
    assert default_tps(2) == (1, 2)
    assert default_tps(6) == (1, 2, 4)
    assert default_tps(8) == (1, 2, 4, 8)


def test_small_layers_are_timed_in_three_copies_and_huge_ones_in_few() -> None:
    entries, _ = entries_of(question())
    assert {copies_of(entry.layer_type, entry.key) for entry in entries} == {3}
    large, _ = entries_of(question("llama-3-8b", tps=(1,), micro_batches=(1,)))
    block = next(entry for entry in large if entry.layer_type.kind == "block")
    assert copies_of(block.layer_type, block.key) == 1  # 436 MB of weights: no cache holds them


def test_a_key_survives_its_way_to_a_process() -> None:
    for entry in entries_of(question())[0]:
        assert key_of(key_document(entry.key)) == entry.key
