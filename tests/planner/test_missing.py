"""What a store lacks, and that the command which is named completes it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from planner.missing import completing_command
from profiler.cli import main as arachne_prof
from specs.cluster import Cluster, Node
from specs.gpu import gpu_type
from specs.model import Model, load_model
from specs.topology import Topology


def cluster_of(*nodes: tuple[str, Topology]) -> Cluster:
    return Cluster(
        "c", tuple(Node(f"n{i}", gpu, 4, link, 12.5, 10.0) for i, (gpu, link) in enumerate(nodes))
    )


def command_for(cluster: Cluster) -> str:
    model = load_model("llama-3-8b")
    gpus = sorted(cluster.gpus_by_type)
    return completing_command(gpus, model, model.default_workload, cluster)


def test_the_usual_links_of_a_type_need_no_option() -> None:
    usual = cluster_of(
        ("a6000", gpu_type("a6000").default_topology),
        ("h100", Topology.NVLINK),
        ("a100-40gb", Topology.NVSWITCH),
    )
    assert command_for(usual) == (
        "arachne-prof estimate --gpu a100-40gb,a6000,h100 --model llama-3-8b --tp 1,2,4"
    )


@pytest.mark.parametrize("gpu", ["a100-40gb", "a6000", "h100"])
def test_links_that_are_not_estimated_unasked_stand_in_the_command_and_it_writes_them(
    gpu: str, tmp_path: Path
) -> None:
    usual = gpu_type(gpu).default_topology
    link = Topology.PCIE if usual is Topology.NVLINK else Topology.NVLINK
    command = command_for(cluster_of((gpu, link)))
    assert command.endswith(f" --topology {link.value}")
    store = str(tmp_path / "s.db")
    words = shlex.split(command)[1:]
    done = CliRunner().invoke(arachne_prof, [*words, "--micro-batch", "1", "--store", store])
    assert done.exit_code == 0, done.output
    from db.store import open_store

    with open_store(store) as opened:
        assert {row.profile.topology for row in opened.link_profiles()} == {link}


def test_layers_of_a_discovered_family_are_measured_for_nothing_can_be_estimated() -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 96}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    model = Model.from_config("small-gemma", {"model_type": "gemma", **sizes, **heads})
    usual = cluster_of(*((gpu, gpu_type(gpu).default_topology) for gpu in ("a6000", "h100")))
    command = completing_command(["a6000", "h100"], model, model.default_workload, usual)
    assert command == (
        "arachne-prof run --gpu a6000 --model small-gemma --tp 1,2,4 && "
        "arachne-prof run --gpu h100 --model small-gemma --tp 1,2,4 && "
        "arachne-prof links --gpu a6000 && arachne-prof links --gpu h100"
    )
