"""A model to train: its config, its layers in order, and its default workload."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from specs.discovered import FIELD, layers_of_document
from specs.errors import SpecError
from specs.families import FAMILIES, ConfigReader, layers_of
from specs.layer import LayerType
from specs.workload import DType, Workload

CATALOGUE = "specs.catalogue"


@dataclass(frozen=True)
class Model:
    """A model as a list of layers.

    name: catalogue name, or the name of the folder or file it was read from. config: the content
    of its Hugging Face config.json. layers: embedding, blocks, head, in order.
    """

    name: str
    config: Mapping[str, Any]
    layers: tuple[LayerType, ...]

    @classmethod
    def from_config(cls, name: str, config: Mapping[str, Any], where: str = "config.json") -> Model:
        """The model of a config. Raises SpecError naming the file and field that is wrong.

        A family without a closed form here is discovered from transformers (seconds, once): its
        layers then stand in the config, and are the same wherever the model is read again.
        """
        config = dict(config)
        family = config.get("model_type")
        if not isinstance(family, str) or family not in FAMILIES:
            ConfigReader(config, where).positive("num_hidden_layers", "num_layers", default=1)
            if FIELD not in config:
                from specs.discovery import discover  # torch and transformers

                config[FIELD] = discover(config, where).document
            return cls(name, config, tuple(layers_of_document(config[FIELD], where)))
        return cls(name, config, tuple(layers_of(config, where)))

    @cached_property
    def config_hash(self) -> str:
        """First 16 hex digits of the SHA-256 of the config in canonical JSON."""
        text = json.dumps(self.config, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def layer_types(self) -> tuple[LayerType, ...]:
        """The distinct layer types, in order of first appearance (three or four)."""
        return tuple(dict.fromkeys(self.layers))

    @property
    def blocks(self) -> int:
        """Number of blocks, without embedding and head."""
        return len(self.layers) - 2

    @property
    def hidden(self) -> int:
        """Width of an activation, in elements."""
        return self.layers[1].shape("hidden")

    @property
    def tied(self) -> bool:
        """Whether the head shares its matrix with the embedding."""
        return self.layers[-1].tied

    @cached_property
    def parameters(self) -> int:
        """Weights of the whole model; a tied matrix counts once."""
        total = sum(layer.parameters + layer.expert_parameters for layer in self.layers)
        if self.tied:
            head = self.layers[-1]
            total -= head.shape("vocab") * int(head.flag("word_dim") or head.shape("hidden"))
        return total

    @cached_property
    def default_workload(self) -> Workload:
        """The workload used where a command gives none (DESIGN section 3)."""
        if self.config.get("model_type") == "sailor":
            return Workload(global_batch=64, seq_len=int(self.config["seq_len"]), dtype=DType.FP32)
        if self.parameters < 100_000_000:
            return Workload(global_batch=32, seq_len=128, dtype=DType.FP32)
        context = int(self.config.get("max_position_embeddings", 4096))
        return Workload(global_batch=1024, seq_len=min(4096, context))


def catalogue_models() -> list[str]:
    """Names of the models that ship with Arachne."""
    files = resources.files(CATALOGUE).iterdir()
    return sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json"))


def load_model(reference: str) -> Model:
    """The model of a catalogue name, a config.json, or a folder that holds one. Downloads nothing.

    Raises SpecError for a name or path that is not there, or a config that is not right.
    """
    if reference in catalogue_models():
        text = resources.files(CATALOGUE).joinpath(f"{reference}.json").read_text()
        return Model.from_config(reference, json.loads(text), f"{reference}.json")
    path = Path(reference)
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise SpecError(
            f"no model {reference!r}: expected a config.json, a folder with one, or one of: "
            f"{', '.join(catalogue_models())}"
        )
    try:
        config = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise SpecError(
            f"{path}: not a readable JSON file ({error}), expected a Hugging Face config.json"
        ) from None
    if not isinstance(config, dict):
        raise SpecError.in_file(path, "the document", type(config).__name__, "a JSON object")
    name = path.parent.name if path.name == "config.json" else path.stem
    return Model.from_config(name or path.stem, config, str(path))
