"""Models and layer types in the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sqlalchemy import Connection, or_, select

from db import tables
from db.columns import utc_now
from db.engine import Database
from db.rows import Row, json_ready, put, put_one, table_of
from specs.layer import LayerKind, LayerType
from specs.model import Model

_MODELS = table_of(tables.Model)
_LAYER_TYPES = table_of(tables.LayerType)
_MODEL_LAYERS = table_of(tables.ModelLayer)


def put_model(connection: Connection, model: Model) -> int:
    """Write the model with its layer types, unless it is there; its id."""
    ids = put_layer_types(connection, model.layer_types)
    model_id = put_one(
        connection,
        _MODELS,
        {
            "name": model.name,
            "config_hash": model.config_hash,
            "config": json_ready(f"config of model {model.name}", dict(model.config)),
            "parameters": model.parameters,
            "blocks": model.blocks,
            "created": utc_now(),
        },
    )
    counts = Counter(model.layers)
    rows = [
        {
            "model_id": model_id,
            "layer_type_id": ids[layer.hash],
            "position": position,
            "count": counts[layer],
        }
        for position, layer in enumerate(model.layer_types)
    ]
    put(connection, _MODEL_LAYERS, rows, replace=False)
    return model_id


def put_layer_types(connection: Connection, layers: Iterable[LayerType]) -> dict[str, int]:
    """Write layer types that are not there yet; ids by hash."""
    rows: list[Row] = [
        {
            "hash": layer.hash,
            "kind": layer.kind.value,
            "shapes": [list(shape) for shape in layer.shapes],
            "parameters": layer.parameters,
            "expert_parameters": layer.expert_parameters,
        }
        for layer in sorted(set(layers), key=lambda layer: layer.hash)
    ]
    put(connection, _LAYER_TYPES, rows, replace=False)
    return layer_type_ids(connection, [row["hash"] for row in rows])


def layer_type_ids(connection: Connection, hashes: Iterable[str]) -> dict[str, int]:
    """Ids of the layer types that are in the store, by hash."""
    query = select(_LAYER_TYPES.c.hash, _LAYER_TYPES.c.id).where(
        _LAYER_TYPES.c.hash.in_(sorted(set(hashes)))
    )
    return dict(connection.execute(query).all())


class ModelQueries(Database):
    """Models by name or hash; layer types by hash."""

    def add_model(self, model: Model) -> None:
        """Write a model and its layer types; again is no error and changes nothing."""
        with self.write() as connection:
            put_model(connection, model)

    def model(self, reference: str) -> Model | None:
        """The model of that name or config hash, the newest of several; None without one."""
        query = (
            select(_MODELS.c.name, _MODELS.c.config)
            .where(or_(_MODELS.c.name == reference, _MODELS.c.config_hash == reference))
            .order_by(_MODELS.c.id.desc())
            .limit(1)
        )
        with self.read() as connection:
            row = connection.execute(query).first()
        return Model.from_config(row.name, row.config, f"model {row.name}") if row else None

    def models(self) -> list[Model]:
        """All models, oldest first."""
        query = select(_MODELS.c.name, _MODELS.c.config).order_by(_MODELS.c.id)
        with self.read() as connection:
            rows = connection.execute(query).all()
        return [Model.from_config(row.name, row.config, f"model {row.name}") for row in rows]

    def add_layer_types(self, layers: Iterable[LayerType]) -> None:
        """Write layer types that come without a model; again is no error."""
        with self.write() as connection:
            put_layer_types(connection, layers)

    def layer_type(self, layer_hash: str) -> LayerType | None:
        """The layer type of that hash; None where there is none."""
        found = self.layer_types([layer_hash])
        return found[0] if found else None

    def layer_types(self, hashes: Iterable[str] | None = None) -> list[LayerType]:
        """The layer types of these hashes, or all, in the order they came."""
        query = select(_LAYER_TYPES).order_by(_LAYER_TYPES.c.id)
        if hashes is not None:
            query = query.where(_LAYER_TYPES.c.hash.in_(sorted(set(hashes))))
        with self.read() as connection:
            rows = connection.execute(query).all()
        return [
            LayerType(
                LayerKind(row.kind),
                tuple((name, value) for name, value in row.shapes),
                row.parameters,
                row.expert_parameters,
            )
            for row in rows
        ]
