from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from profiler.importers import sailor
from profiler.importers.imported import ImportedRun, ImportOptions
from profiler.importers.sailor_network import Fit, p2p_rows, read_network, ring_rows
from specs.errors import SpecError
from specs.layer import LayerKind
from specs.model import load_model
from specs.profile import LayerKey, LayerProfile, Operation, Source
from specs.topology import Topology
from specs.workload import DType

SEED = Path(__file__).resolve().parents[2] / "examples" / "sailor"


@pytest.fixture(scope="module")
def runs() -> dict[str, ImportedRun]:
    return {run.title: run for run in sailor.read(SEED, ImportOptions())}


def row(run: ImportedRun, kind: LayerKind, gpu: str, tp: int, micro_batch: int) -> LayerProfile:
    hashes = {layer.kind: layer.hash for layer in run.models[0].layer_types}
    [found] = [
        r
        for r in run.layers
        if (r.key.layer_type, r.key.gpu, r.key.tp, r.key.micro_batch)
        == (hashes[kind], gpu, tp, micro_batch)
    ]
    return found


def small_copy(tmp_path: Path) -> tuple[Path, dict[str, dict[str, dict[str, list[float]]]]]:
    """A folder with OPT-350's sizes and one table of times, for tests that break it."""
    (tmp_path / "model_memory").mkdir()
    shutil.copy(SEED / "model_memory/llm_info.json", tmp_path / "model_memory")
    whole = json.loads((SEED / "planner_profiles/OPT-350/GH-96/profile.json").read_text())
    return tmp_path, {"1": {"4": whole["1"]["4"]}}


def write_times(folder: Path, times: object, gpu: str = "GH-96", model: str = "OPT-350") -> None:
    file = folder / "planner_profiles" / model / gpu / "profile.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(times))


def test_each_copy_of_each_model_is_a_run_of_its_own(runs: dict[str, ImportedRun]) -> None:
    assert list(runs) == [
        *[
            f"Sailor, {c} copy, {m}"
            for c in ("simulator", "planner")
            for m in ("GPT-Neo-2.7", "LLAMA-3-8", "OPT-30", "OPT-350")
        ],
        "Sailor, links and hosts",
    ]
    for run in runs.values():
        assert run.new.source is Source.IMPORTED
        assert run.new.licence.startswith("MIT")
        assert "eth-easl/sailor@cf2c8e3cc53c" in run.new.origin
    assert len({run.new.origin for run in runs.values()}) == len(runs)


def test_seconds_become_ms_and_the_total_over_the_blocks_stays(
    runs: dict[str, ImportedRun],
) -> None:
    block = row(runs["Sailor, planner copy, OPT-350"], LayerKind.BLOCK, "gh200", 4, 1)
    # Block 1 took 2.561 ms, the 23 copies 2.381 ms: 24 rows of the mean make the same model.
    assert 24 * block.forward_ms == pytest.approx(2.561 + 23 * 2.381)
    assert 24 * block.backward_ms == pytest.approx(1.938 + 23 * 1.719)
    assert block.forward_mad_ms == pytest.approx((2.561 - 2.381) / 2)
    assert block.samples == 2
    assert (block.comm_ms, block.comm_included) == (0.0, True)


def test_the_update_is_divided_by_the_layers_it_was_repeated_on(
    runs: dict[str, ImportedRun],
) -> None:
    run = runs["Sailor, planner copy, OPT-350"]
    rows = [
        row(run, kind, "gh200", 4, 1)
        for kind in (LayerKind.EMBEDDING, LayerKind.BLOCK, LayerKind.HEAD)
    ]
    assert rows[0].update_ms == pytest.approx(0.447 / 26)
    assert rows[0].update_ms + 24 * rows[1].update_ms + rows[2].update_ms == pytest.approx(0.447)


def test_sizes_are_those_of_the_degree_and_activations_grow_with_the_micro_batch(
    runs: dict[str, ImportedRun],
) -> None:
    run = runs["Sailor, planner copy, OPT-350"]
    head = row(run, LayerKind.HEAD, "rtx-3090", 8, 2)
    assert head.parameter_bytes == 6_555_648 * 4
    assert head.activation_bytes == 28_318_464 * 4 * 2
    block = row(run, LayerKind.BLOCK, "gh200", 4, 1)
    # At TP 4 block 1 keeps 27,398,144 floats, the other 23 keep 27,267,072.
    assert block.activation_bytes == round((27_398_144 + 23 * 27_267_072) * 4 / 24)


def test_the_last_two_layers_of_llama_make_the_head(runs: dict[str, ImportedRun]) -> None:
    head = row(runs["Sailor, planner copy, LLAMA-3-8"], LayerKind.HEAD, "gh200", 1, 1)
    assert head.forward_ms == pytest.approx(0.369 + 16.226)
    assert head.update_ms == pytest.approx(2 * 9.272 / 35)
    assert head.parameter_bytes == (4096 + 4096) * 4


def test_keys_say_fp32_and_the_sequence_length_of_the_data(runs: dict[str, ImportedRun]) -> None:
    keys = {r.key for run in runs.values() for r in run.layers}
    assert {key.dtype for key in keys} == {DType.FP32}
    lengths = {
        run.title.rsplit(", ")[-1]: {r.key.seq_len for r in run.layers}
        for run in runs.values()
        if run.layers
    }
    assert lengths == {
        "OPT-350": {2048},
        "GPT-Neo-2.7": {2048},
        "OPT-30": {2048},
        "LLAMA-3-8": {8192},
    }


def test_the_copies_differ_in_the_forward_times_that_look_edited(
    runs: dict[str, ImportedRun],
) -> None:
    planner = row(runs["Sailor, planner copy, OPT-350"], LayerKind.BLOCK, "gh200", 4, 1)
    simulator = row(runs["Sailor, simulator copy, OPT-350"], LayerKind.BLOCK, "gh200", 4, 1)
    assert planner.forward_ms == pytest.approx(2.3885)
    assert simulator.forward_ms == pytest.approx(1.5)
    assert simulator.backward_ms == planner.backward_ms
    assert any("edited by hand" in n for n in runs["Sailor, simulator copy, OPT-350"].notes)


def test_another_models_file_is_refused_by_name(runs: dict[str, ImportedRun]) -> None:
    run = runs["Sailor, planner copy, GPT-Neo-2.7"]
    assert not any(r.key.gpu == "gh200" for r in run.layers)
    assert len(run.refused) == 63  # 21 tables of 3 layer types
    assert all("has 26 layers" in refused.reason and refused.key for refused in run.refused)
    whole = runs["Sailor, simulator copy, GPT-Neo-2.7"]
    assert sum(r.key.gpu == "gh200" for r in whole.layers) == 60


def test_a_degree_without_sizes_is_refused(runs: dict[str, ImportedRun]) -> None:
    degrees = {r.key.tp for r in runs["Sailor, simulator copy, OPT-30"].refused if r.key}
    assert degrees == {7, 8}
    assert all("no sizes" in r.reason for r in runs["Sailor, simulator copy, OPT-30"].refused)


def test_an_update_of_zero_is_said(runs: dict[str, ImportedRun]) -> None:
    notes = runs["Sailor, planner copy, OPT-350"].notes
    assert any("A100-80" in note and "optimizer step is 0" in note for note in notes)


def test_one_copy_and_one_model_can_be_asked_for() -> None:
    options = ImportOptions(models=("sailor-opt-350m",), copies=("simulator",))
    assert [run.title for run in sailor.read(SEED, options)] == [
        "Sailor, simulator copy, OPT-350",
        "Sailor, links and hosts",
    ]


def test_bytes_that_are_not_the_known_ones_carry_no_commit_and_no_licence(tmp_path: Path) -> None:
    folder, times = small_copy(tmp_path)
    times["1"]["4"]["1"][0] = 0.0025
    write_times(folder, times)
    [run] = sailor.read(folder, ImportOptions())
    assert "unknown commit" in run.new.origin
    assert run.new.licence == ""
    assert len(run.layers) == 3


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([-0.001, 0.002, 0.0], "seconds of at least 0"),
        ([0.001, float("nan"), 0.0], "seconds of at least 0"),
        ([0.001, 0.002], "expected [forward, backward, update]"),
        (None, "layer 7 is missing"),
    ],
)
def test_a_layer_that_cannot_be_read_refuses_its_table(
    tmp_path: Path, value: list[float] | None, reason: str
) -> None:
    folder, times = small_copy(tmp_path)
    if value is None:
        del times["1"]["4"]["7"]
        times["1"]["4"]["26"] = [0.001, 0.001, 0.001]
    else:
        times["1"]["4"]["7"] = value
    write_times(folder, times)
    [run] = sailor.read(folder, ImportOptions())
    assert run.layers == ()
    assert {r.reason for r in run.refused if reason in r.reason}
    assert len(run.refused) == 3


def test_a_time_above_the_peak_of_the_card_is_refused_alone(tmp_path: Path) -> None:
    folder, times = small_copy(tmp_path)
    # 2 * 12,596,224 weights * 2048 tokens / 4 ranks = 12.9 GFLOP; half of 989.4 TFLOP/s does them
    # in 0.0261 ms, and 1.05 of it in 0.0248 ms.
    for i in range(1, 25):
        times["1"]["4"][str(i)] = [0.0000240, 0.001, 0.0]
    write_times(folder, times)
    [run] = sailor.read(folder, ImportOptions())
    [refused] = run.refused
    assert "above 1.05 x the fp32 peak of gh200" in refused.reason
    assert {r.key.layer_type for r in run.layers} == {
        load_model("sailor-opt-350m").layers[0].hash,
        load_model("sailor-opt-350m").layers[-1].hash,
    }
    for i in range(1, 25):
        times["1"]["4"][str(i)] = [0.0000255, 0.001, 0.0]
    write_times(folder, times)
    [run] = sailor.read(folder, ImportOptions())
    assert run.refused == ()


def test_a_gpu_without_a_catalogue_name_is_refused_until_it_gets_one(tmp_path: Path) -> None:
    folder, times = small_copy(tmp_path)
    write_times(folder, times, gpu="H100")
    [run] = sailor.read(folder, ImportOptions())
    assert run.layers == ()
    assert "no catalogue name" in run.refused[0].reason
    [run] = sailor.read(folder, ImportOptions(gpus={"H100": "h100"}))
    assert {r.key.gpu for r in run.layers} == {"h100"}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (ImportOptions(models=("llama-3-8b",)), "no Sailor model 'llama-3-8b'"),
        (ImportOptions(copies=("simulator",)), "no simulator copy"),
        (ImportOptions(copies=("third",)), "no copy 'third'"),
        (ImportOptions(models=("OPT-30",)), "no profiles of OPT-30"),
        (ImportOptions(gpus={"H100": "cpu"}), "not for cpu"),
        (ImportOptions(gpus={"H100": "abacus"}), "no GPU type 'abacus'"),
    ],
)
def test_what_is_not_there_is_an_error(
    tmp_path: Path, options: ImportOptions, complaint: str
) -> None:
    folder, times = small_copy(tmp_path)
    write_times(folder, times)
    with pytest.raises(SpecError, match=complaint):
        sailor.read(folder, options)


def test_a_folder_of_something_else_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"no model_memory/llm_info\.json"):
        sailor.read(tmp_path, ImportOptions())


def test_hosts_have_the_planners_constant_and_nvml_memory_less_600_mib(
    runs: dict[str, ImportedRun],
) -> None:
    hosts = {host.gpu: host for host in runs["Sailor, links and hosts"].hosts}
    assert set(hosts) == set(sailor.GPU_NAMES.values())
    assert hosts["gh200"].usable_bytes == (97_871 - 600) * 1024**2
    assert (hosts["gh200"].framework_bytes, hosts["gh200"].host_ms) == (3_000_000_000, 0.0)


# Links


def test_a_fit_is_a_parabola_over_the_binary_logarithm_of_megabytes() -> None:
    fit = Fit(1.0, 2.0, 3.0, 100.0)
    assert fit.gb_per_s(4_000_000) == pytest.approx(1 * 4 + 2 * 2 + 3)


def test_samples_are_never_below_the_smallest_measured_nor_above_the_largest() -> None:
    points = Fit(0.0, 0.0, 10.0, 10.0).sample()
    assert (points[0][0], points[-1][0]) == (1 << 16, 1 << 30)
    assert points[0][1] == pytest.approx(65536 / 10e6)  # 10 GB/s = 1e7 bytes a ms


def test_bandwidth_is_held_where_the_parabola_exceeds_the_largest_or_falls() -> None:
    above = Fit(0.0, 1.0, 10.0, 15.0).sample()
    assert above[-1][1] == pytest.approx((1 << 30) / 15e6)
    falling = Fit(-1.0, 0.0, 10.0, 15.0).sample()  # vertex at 1 MB
    bandwidth = [size / ms / 1e6 for size, ms in falling]
    assert bandwidth == sorted(bandwidth)
    assert bandwidth[-1] == pytest.approx(10.0, rel=0.01)


def test_sizes_where_the_fit_describes_no_link_are_left_out() -> None:
    # Negative below 2^17; then so steep that 2^17 takes longer than 2^18.
    points = Fit(0.80818532, 16.40103598, 32.98046678, 248.88).sample()
    assert points[0][0] == 1 << 19
    times = [ms for _, ms in points]
    assert times == sorted(times)


def test_a_ring_takes_n_less_one_hops_twice_for_an_all_reduce() -> None:
    rows = {row.operation: row for row in ring_rows("gh200", Topology.NVLINK, 4, [(1000, 0.5)])}
    assert rows[Operation.ALL_REDUCE].time_ms == 3.0
    assert rows[Operation.ALL_GATHER].time_ms == rows[Operation.REDUCE_SCATTER].time_ms == 1.5
    assert {r.nbytes for r in rows.values()} == {4000}


def test_pairs_that_send_together_are_twice_as_many_ranks() -> None:
    [row] = p2p_rows("rtx-3090", "titan-rtx", Topology.INTER, 8, [(1000, 0.5)])
    assert (row.ranks, row.peer_gpu, row.nbytes) == (16, "titan-rtx", 1000)


def test_links_of_the_seed_data_cover_what_plans_need(runs: dict[str, ImportedRun]) -> None:
    links = runs["Sailor, links and hosts"].links
    held = {(r.gpu, r.peer, r.topology, r.operation, r.ranks) for r in links}
    for gpu, topology, counts in (
        ("gh200", Topology.NVLINK, (2, 4)),
        ("rtx-3090", Topology.PCIE, (2, 4, 8)),
        ("titan-rtx", Topology.PCIE, (2, 4, 8)),
        ("rtx-2080-ti", Topology.PCIE, (2, 4, 8)),
    ):
        assert (gpu, gpu, topology, Operation.P2P, 2) in held
        for n in counts:
            assert (gpu, gpu, topology, Operation.ALL_REDUCE, n) in held
            assert (gpu, gpu, topology, Operation.ALL_GATHER, n) in held
            assert (gpu, gpu, Topology.INTER, Operation.P2P, 2 * n) in held
    assert ("rtx-3090", "titan-rtx", Topology.INTER, Operation.P2P, 16) in held
    assert all(r.time_ms > 0 for r in links)


def test_a_broken_fit_is_refused_by_name() -> None:
    network = read_network(
        {
            "network/intra_node_bandwidths.json": {
                "GH-96": {"2": [[1, 2], 3], "4": [[0, 0, -1], 1e9], "1": [[0, 0, 1], 1e9]},
                "TPU": {"4": [[0, 0, 1], 1e9]},
            }
        },
        sailor.GPU_NAMES,
    )
    assert network.links == ()
    assert [r.where.split(": ")[1] for r in network.refused] == [
        "GH-96 x 2",
        "GH-96 x 4",
        "GH-96 x 1",
        "TPU",
    ]


def test_a_key_is_imported_once(runs: dict[str, ImportedRun]) -> None:
    for run in runs.values():
        keys: list[LayerKey] = [r.key for r in run.layers]
        assert len(keys) == len(set(keys))
        links = [(r.gpu, r.peer, r.topology, r.operation, r.ranks, r.nbytes) for r in run.links]
        assert len(links) == len(set(links))
