"""Weights files: what is written is read, and nothing else."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.policy.network import initial_parameters
from planner.policy.weights import FORMAT, Weights, chosen_weights, load_weights, save_weights
from specs.errors import PlanError


def written(path: Path, **changes: Any) -> Path:
    """A weights file, with metadata or parameters changed."""
    from safetensors.numpy import save

    parameters = initial_parameters(0) | changes.pop("parameters", {})
    metadata = {"kind": "arachne-policy", "format": str(FORMAT), "record": "{}"} | changes
    path.write_bytes(save(parameters, metadata))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(PlanError) as caught:
        load_weights(path)
    line = str(caught.value)
    assert "\n" not in line
    assert str(path) in line
    return line


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    digest = save_weights(file, Weights(initial_parameters(3), {"seed": 3, "steps": 10}))
    found = load_weights(file)
    assert found.record == {"seed": 3, "steps": 10}
    assert found.file_hash == digest
    for name, value in initial_parameters(3).items():
        assert np.array_equal(found.parameters[name], value)


def test_a_corrupted_file_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "w.safetensors")
    whole = file.read_bytes()
    for content in (b"", b"PK\x03\x04 a pickle", whole[:100], whole[:-7], b"\xff" * 64):
        file.write_bytes(content)
        assert "not a readable safetensors file" in refusal(file)


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    assert "no weights of this planner" in refusal(
        written(tmp_path / "w.safetensors", kind="something-else")
    )


def test_a_newer_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    line = refusal(written(tmp_path / "w.safetensors", format=str(FORMAT + 1)))
    assert f"format '{FORMAT + 1}'" in line
    assert "use the Arachne that wrote it" in line


def test_parameters_of_another_shape_or_not_finite_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    wrong = {"depth.score": np.zeros(3, np.float32)}
    assert "depth.score has shape (3,)" in refusal(written(file, parameters=wrong))
    wrong = {"surplus": np.zeros(1, np.float32)}
    assert "surplus" in refusal(written(file, parameters=wrong))
    wrong = {"depth.score": np.full(64, np.nan, np.float32)}
    assert "not all finite" in refusal(written(file, parameters=wrong))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refusal(tmp_path / "none.safetensors")


def test_the_environment_can_name_other_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.safetensors"
    save_weights(file, Weights(initial_parameters(5), {"seed": 5}))
    monkeypatch.setenv("ARACHNE_POLICY", str(file))
    assert chosen_weights().record == {"seed": 5}


def test_the_shipped_weights_say_how_they_were_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARACHNE_POLICY", raising=False)
    record = chosen_weights().record
    assert record["command"].startswith("arachne-plan train")
    for name in ("commit", "models", "gpus", "compositions", "profiles", "training_s", "seed"):
        assert name in record
    json.dumps(record)
