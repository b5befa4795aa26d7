"""Models and layer types in the store."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import func, select

from db import tables
from db.rows import table_of
from db.store import Store
from specs.model import Model, catalogue_models, load_model
from tests.db.samples import MODEL


@pytest.mark.parametrize("name", catalogue_models())
def test_every_model_of_the_catalogue_comes_back_equal(store: Store, name: str) -> None:
    model = load_model(name)
    store.add_model(model)
    assert store.model(name) == model
    assert store.model(model.config_hash) == model
    assert [store.layer_type(layer.hash) for layer in model.layer_types] == list(model.layer_types)


def test_adding_a_model_again_adds_no_row(store: Store) -> None:
    for _ in range(2):
        store.add_model(MODEL)
    assert store.models() == [MODEL]
    assert store.layer_types() == sorted(MODEL.layer_types, key=lambda layer: layer.hash)


def test_layer_types_are_shared_by_models_that_have_them(store: Store) -> None:
    small, large = load_model("qwen3-32b"), load_model("qwen3-64b")
    store.add_model(small)
    store.add_model(large)
    assert len(store.layer_types()) == 3
    table = table_of(tables.ModelLayer)
    with store.read() as connection:
        counts = connection.execute(select(func.sum(table.c.count)).group_by(table.c.model_id))
        assert sorted(counts.scalars()) == [64 + 2, 128 + 2]


def test_the_newest_model_of_a_name_is_found(store: Store) -> None:
    store.add_model(MODEL)
    changed = Model.from_config(MODEL.name, {**MODEL.config, "num_hidden_layers": 3})
    store.add_model(changed)
    assert store.model(MODEL.name) == changed
    assert store.model(MODEL.config_hash) == MODEL


def test_one_config_may_have_two_names(store: Store) -> None:
    store.add_model(MODEL)
    store.add_model(replace(MODEL, name="the same"))
    assert {model.name for model in store.models()} == {MODEL.name, "the same"}
    found = store.model(MODEL.config_hash)
    assert found is not None
    assert found.name == "the same"


@pytest.mark.parametrize(
    "name", ["<script>alert('x')</script>", "x" * 300, "\U0001f577 % ? ' \" ;"]
)
def test_names_are_text_whatever_they_hold(store: Store, name: str) -> None:
    store.add_model(replace(MODEL, name=name))
    found = store.model(name)
    assert found is not None
    assert found.name == name


def test_what_is_not_there_is_none(store: Store) -> None:
    assert store.model("llama-3-8b") is None
    assert store.layer_type("0" * 16) is None
    assert store.layer_types([]) == []
