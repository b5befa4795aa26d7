from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from specs.cluster import Cluster, cluster_from_document, load_cluster
from specs.errors import SpecError
from specs.topology import Topology

LAB = """
name: lab
inter_node: {bandwidth_gb_per_s: 12.5, latency_us: 10}
nodes:
  - {gpu: a100-40gb, gpus: 4, count: 2, intra_node: nvswitch}
  - {gpu: h100, gpus: 1, count: 2, inter_node: {bandwidth_gb_per_s: 25}, hosts: [h1, h2]}
  - {gpu: a100-40gb, gpus: 8}
  - {gpu: a6000, gpus: 3, name: odd, inter_node: {bandwidth: measured}}
"""


def lab() -> Cluster:
    return cluster_from_document(yaml.safe_load(LAB), "lab.yaml")


def test_nodes_are_named_by_type_and_number() -> None:
    assert [node.name for node in lab().nodes] == [
        "a100-40gb-0",
        "a100-40gb-1",
        "h100-0",
        "h100-1",
        "a100-40gb-2",
        "odd",
    ]
    assert lab().gpus_by_type == {"a100-40gb": 16, "h100": 2, "a6000": 3}
    assert lab().gpus == 21


def test_links_and_hosts_come_from_the_node_then_the_cluster_then_the_type() -> None:
    cluster = lab()
    assert cluster.node("a100-40gb-0").intra_node is Topology.NVSWITCH
    assert cluster.node("a100-40gb-2").intra_node is Topology.NVLINK
    assert cluster.node("h100-1").bandwidth_gb_per_s == 25
    assert cluster.node("h100-1").nic_bytes_per_ms == 25e6
    assert cluster.node("h100-1").latency_ms == 0.01
    assert cluster.node("h100-1").host == "h2"
    assert cluster.node("odd").nic_bytes_per_ms is None


def test_a_resolved_cluster_reads_back_equal() -> None:
    again = cluster_from_document(json.loads(json.dumps(lab().to_json())), "again")
    assert again == lab()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("gpus: 8", "gpus: 0 -> nodes[2].gpus is 0, expected"),
        ("gpus: 8", "gpus: 2.5 -> nodes[2].gpus is 2.5, expected"),
        ("gpus: 8", "gpus: '8' -> nodes[2].gpus is '8', expected"),
        ("gpus: 8", "gpus: 8, count: -1 -> nodes[2].count is -1, expected"),
        ("gpus: 8", "gpsu: 8 -> nodes[2].gpus is None, expected the field to be there"),
        ("gpus: 8", "gpus: 8, colour: red -> nodes[2].colour is 'red', expected no such field"),
        ("gpu: h100", "gpu: h1000 -> nodes[1].gpu: no GPU type 'h1000'"),
        ("hosts: [h1, h2]", "hosts: [h1] -> expected hosts to name 2 hosts"),
        ("nvswitch", "infiniband -> nodes[0].intra_node is 'infiniband', expected"),
        ("nvswitch", "host -> nodes[0].intra_node is 'host', expected host for cpu"),
        ("bandwidth_gb_per_s: 25", "bandwidth_gb_per_s: -1 -> bandwidth_gb_per_s is -1"),
        ("name: odd", "name: h100-0 -> names two nodes 'h100-0'"),
    ],
)
def test_a_wrong_file_is_refused_with_field_value_and_expectation(
    tmp_path: Path, change: str, message: str
) -> None:
    new, _, expected = message.partition(" -> ")
    path = tmp_path / "lab.yaml"
    path.write_text(LAB.replace(change, new, 1))
    with pytest.raises(SpecError) as raised:
        load_cluster(path)
    assert "lab.yaml" in str(raised.value)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nodes: []",
        "name: x\nnodes: []",
        "- 1",
        "name: [",
        "name: x\nnodes: [{gpu: h100, gpus: 1}]",
    ],
)
def test_a_file_that_is_no_cluster_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=r"c\.yaml"):
        load_cluster(path)


def test_a_cluster_without_nodes_is_refused_in_plain_words() -> None:
    with pytest.raises(SpecError) as refused:
        cluster_from_document({"name": "c", "nodes": []}, "c.yaml")
    assert str(refused.value) == "c.yaml: nodes is [], expected at least 1 in the list"


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such file"):
        load_cluster(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(bytes(range(128, 256)))
    with pytest.raises(SpecError, match="cannot be read as text"):
        load_cluster(tmp_path / "binary.yaml")
    with pytest.raises(SpecError, match="cannot be read"):
        load_cluster(tmp_path)
