"""What every process of `ranks.py` has loaded when it starts."""

from __future__ import annotations

import torch

import tests.runtime.test_checkpoint
import tests.runtime.test_executor
import tests.runtime.test_experts
import tests.runtime.test_layers
import tests.runtime.test_random_plans
import tests.runtime.test_training  # noqa: F401
from runtime.optimizer import import_optimizers
from tests.runtime.tiny import FAMILIES, tiny_model

torch.set_num_threads(1)
import_optimizers()
for _family in FAMILIES:
    tiny_model(_family)  # imports the family's classes
