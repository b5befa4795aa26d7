from __future__ import annotations

from xml.etree import ElementTree

from reports.pipeline_picture import cluster_figure, layers_in_words, pipeline_figure, placements
from reports.svg import Drawing, fitted
from specs.cluster import Cluster, Node
from specs.plan import Place, Plan, Replica, Stage, Template
from specs.topology import Topology
from tests.reports.stores import NASTY, cluster_of, straight_plan


def texts(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg)
    return [e.text or "" for e in root.iter() if e.tag.endswith("text")]


def test_a_picture_names_stages_layers_and_nodes() -> None:
    plan = straight_plan(cluster_of(("h100", 4, 1), ("a6000", 4, 1)))
    shown = texts(pipeline_figure(plan).svg)
    assert {"stage 0", "stage 1", "h100", "a6000", "h100-0", "a6000-0", "replica 0"} <= set(shown)
    assert "embedding, blocks 0-3" in shown
    assert "blocks 4-7, head" in shown


def test_every_tp_group_stands_in_the_table_of_placements() -> None:
    plan = straight_plan(cluster_of(("h100", 4, 4)), replicas=2)
    rows = placements(plan).rows
    assert len(rows) == 4
    assert rows[0][:5] == (0, 0, 0, "h100", 1)
    assert [row[7] for row in rows] == ["h100-0", "h100-1", "h100-2", "h100-3"]


def test_idle_gpus_are_said_and_drawn_apart() -> None:
    plan = straight_plan(cluster_of(("h100", 4, 1)))
    figure = cluster_figure(plan)
    assert "3 GPUs" in figure.caption
    assert figure.svg.count("idle</title>") == 3


def test_many_replicas_are_not_all_drawn() -> None:
    plan = straight_plan(cluster_of(("h100", 1, 16)), replicas=16)
    shown = texts(pipeline_figure(plan).svg)
    assert "replica 5" in shown
    assert "replica 6" not in shown
    assert any("10 more replicas run" in text for text in shown)


def test_names_are_text_in_a_picture_too() -> None:
    node = Node(NASTY, "h100", 4, Topology.NVLINK, 12.5, 10.0)
    plan = straight_plan(Cluster("c", (node,)))
    for figure in (pipeline_figure(plan), cluster_figure(plan)):
        ElementTree.fromstring(figure.svg)
        assert "<script" not in figure.svg


def test_words_for_the_layers_of_a_stage() -> None:
    plan = straight_plan(cluster_of(("h100", 4, 1)))
    assert layers_in_words(plan, plan.templates[0].stages[0]) == "embedding, blocks 0-7, head"
    assert layers_in_words(plan, Stage("h100", 1, range(2, 3))) == "block 1"


def test_two_templates_are_two_pictures_in_one() -> None:
    plan = straight_plan(cluster_of(("h100", 4, 2)))
    model = plan.model
    templates = tuple(
        Template(
            1,
            (Stage("h100", 2, range(len(model.layers))),),
            (Replica(16, 1, (Place(f"h100-{k}", (0, 1)),)),),
        )
        for k in range(2)
    )
    both = Plan("me", model, plan.workload, plan.cluster, templates)
    shown = texts(pipeline_figure(both).svg)
    assert {"Template 0", "Template 1"} <= set(shown)
    assert "0.0" in texts(cluster_figure(both).svg)


def test_a_long_text_is_cut_to_its_room() -> None:
    assert fitted("short", 12, None) == "short"
    assert fitted("x" * 300, 10, 56).endswith("…")
    drawing = Drawing("t", "d")
    drawing.text(0, 10, "y" * 300, room=50)
    assert "y" * 300 in drawing.to_svg()  # whole, as the pointer's hint
