"""Writing rows and checking numbers."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pytest
from sqlalchemy import UniqueConstraint, select

from db import tables
from db.rows import (
    big,
    canonical,
    gpu_type_ids,
    json_ready,
    natural_key,
    number,
    put,
    table_of,
    whole,
)
from db.store import Store
from db.tables import Base
from specs.errors import StoreError
from specs.gpu import GPU_TYPES

GPUS = table_of(tables.GpuType)


def test_each_table_has_one_natural_key_without_ids_of_its_own() -> None:
    for table in Base.metadata.sorted_tables:
        uniques = [rule for rule in table.constraints if isinstance(rule, UniqueConstraint)]
        assert len(uniques) == 1, table.name
        assert "id" not in natural_key(table)


def test_put_keeps_or_replaces_what_is_there(store: Store) -> None:
    with store.write() as connection:
        gpu_type_ids(connection, ["h100"])
        row = dict(connection.execute(select(GPUS)).mappings().one())
        key = row.pop("id")
        put(connection, GPUS, [row | {"price_per_hour": 1.0, "sms": 1}], replace=False)
        assert connection.execute(select(GPUS.c.price_per_hour)).scalar_one() == 11.06
        put(connection, GPUS, [row | {"price_per_hour": 2.0, "sms": 1}], replace=["price_per_hour"])
        found = connection.execute(select(GPUS)).mappings().one()
        assert (found["price_per_hour"], found["sms"], found["id"]) == (2.0, 132, key)
        put(connection, GPUS, [row | {"price_per_hour": 3.0, "sms": 4}], replace=True)
        found = connection.execute(select(GPUS)).mappings().one()
        assert (found["price_per_hour"], found["sms"], found["id"]) == (3.0, 4, key)
        put(connection, GPUS, [], replace=True)


def test_every_gpu_type_of_the_catalogue_can_be_stored(store: Store) -> None:
    with store.write() as connection:
        ids = gpu_type_ids(connection, GPU_TYPES)
        assert gpu_type_ids(connection, ["cpu", "h100", "cpu"]) == {
            "cpu": ids["cpu"],
            "h100": ids["h100"],
        }
        assert len(set(ids.values())) == len(GPU_TYPES)
        cpu = connection.execute(select(GPUS).where(GPUS.c.name == "cpu")).one()
        assert (cpu.memory_mib, cpu.tflops, cpu.default_topology) == (None, None, "host")


@pytest.mark.parametrize("value", ["1", None, 1j, [], math.nan, -math.inf, -1e-300])
def test_what_is_no_number_from_zero_up_is_refused(value: object) -> None:
    with pytest.raises(StoreError, match=r"row x: y is .*, expected a number of at least 0"):
        number("row x", "y", value)


@pytest.mark.parametrize("value", ["1", None, 1.0, Decimal(1), -1, 2**31, np.float64(1)])
def test_what_is_no_whole_number_from_zero_up_is_refused(value: object) -> None:
    with pytest.raises(StoreError, match=r"row x: y is .*, expected a whole number from 0"):
        whole("row x", "y", value)


def test_numbers_become_plain_ones() -> None:
    assert type(number("x", "y", np.float32(0.5))) is float
    assert type(number("x", "y", 3)) is float
    assert type(whole("x", "y", np.int64(3))) is int
    assert big("x", "y", 2**63 - 1) == 2**63 - 1


def test_what_has_no_json_form_is_refused_before_it_is_stored() -> None:
    assert json_ready("options", {"ranks": (1, 2)}) == {"ranks": [1, 2]}
    for value in ({"x": math.nan}, {"x": object()}, {1, 2}):
        with pytest.raises(StoreError, match="options has no JSON form"):
            json_ready("options", value)


def test_canonical_text_does_not_depend_on_order() -> None:
    assert (
        canonical({"b": 1, "a": [1, 2]}) == canonical({"a": [1, 2], "b": 1}) == '{"a":[1,2],"b":1}'
    )
