"""Blocks with experts: the untiled form, and tilings whose other ranks are stood in for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from profiler.measure.crew import Crew
from profiler.measure.entries import entries_of
from profiler.measure.messages import key_document
from specs.model import Model
from tests.profiler.test_measure_crew import cpu_devices, small_question

MIXTRAL = Model.from_config(
    "small-moe",
    {
        "model_type": "mixtral",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "vocab_size": 128,
        "max_position_embeddings": 128,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    },
)
EXPERT_BYTES = 3 * 64 * 96 * 4


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(cpu_devices(), MIXTRAL, (1, 2)) as started:
        yield started


@pytest.mark.parametrize(
    ("tp", "ep", "etp", "experts_held"),
    [
        (1, 1, 1, 4.0),  # whole
        (2, 1, 2, 2.0),  # untiled: half of the width of all four
        (1, 4, 1, 1.0),  # one whole expert, the other three ranks stood in for
        (2, 2, 1, 2.0),  # two whole experts on each of two ranks
        (1, 2, 2, 1.0),  # half of the width of two, the other half on the neighbour
    ],
)
def test_a_tiling_is_measured_with_its_share_of_the_experts(
    crew: Crew, tp: int, ep: int, etp: int, experts_held: float
) -> None:
    question = small_question(MIXTRAL, tps=(tp,), micro_batches=(1,), eps=(ep,), etps=(etp,))
    blocks = [e for e in entries_of(question)[0] if e.layer_type.kind == "moe-block"]
    entry = next(e for e in blocks if (e.key.ep, e.key.etp) == (ep, etp))
    prepared = crew.ask({"do": "prepare", "key": key_document(entry.key), "copies": 2}, 120)
    assert [answer["idle"] for answer in prepared] == [False, False]
    for answer in prepared:
        assert answer["expert_parameter_bytes"] == experts_held * EXPERT_BYTES
        assert answer["parameter_bytes"] > 0
        assert answer["activation_bytes"] > 0
    window = crew.ask({"do": "window", "passes": 3, "updates": 2}, 120)
    for answer in window:
        assert min(answer["forward_ms"]) > 0
        assert min(answer["backward_ms"]) > 0
        assert (min(answer["comm_ms"]) > 0) == (max(tp, etp) > 1)
