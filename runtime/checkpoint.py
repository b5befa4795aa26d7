"""Checkpoints that any plan of the same model can start from (torch.distributed.checkpoint)."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from runtime.executor import Executor
from runtime.progress import Progress
from runtime.state import StatePart, kept_parts, state_of
from specs.boxes import Box
from specs.errors import RunError
from specs.files import write_atomically
from specs.model import Model
from specs.plan_file import plan_to_document

_FACTS = "arachne.json"
_KEPT = 2  # newest checkpoints that stay: one more than needed, should the newest be unreadable
_SCHEMA = 1


def _chunk(box: Box) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(box.offset), torch.Size(box.size))


class _BoxWriter(SavePlanner):
    """Writes boxes of tensors, each by the rank that keeps it."""

    def set_up_planner(
        self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False
    ) -> None:
        self._parts: dict[MetadataIndex, StatePart] = {
            MetadataIndex(part.key, torch.Size(part.box.offset)): part
            for part in state_dict["parts"]
        }

    def create_local_plan(self) -> SavePlan:
        return SavePlan(
            [
                WriteItem(
                    index,
                    WriteItemType.SHARD,
                    tensor_data=TensorWriteData(
                        _chunk(part.box),
                        TensorProperties.create_from_tensor(part.values),
                        torch.Size(part.shape),
                    ),
                )
                for index, part in self._parts.items()
            ]
        )

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        return create_default_global_save_plan(all_plans)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        # The index hint that the global plan adds is no part of equality.
        return self._parts[write_item.index].values.contiguous()


class _BoxReader(LoadPlanner):
    """Reads boxes of tensors, whatever boxes they were written in."""

    def set_up_planner(
        self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        assert metadata is not None
        self._saved = metadata.state_dict_metadata
        self._parts: dict[str, StatePart] = {part.key: part for part in state_dict["parts"]}

    def create_local_plan(self) -> LoadPlan:
        items: list[ReadItem] = []
        for key, part in self._parts.items():
            saved = self._saved.get(key)
            if not isinstance(saved, TensorStorageMetadata):
                raise RunError(
                    f"the checkpoint has no {key}: it is of another model, precision or optimizer"
                )
            if tuple(saved.size) != part.shape or saved.properties.dtype != part.values.dtype:
                raise RunError(
                    f"the checkpoint has {key} as {saved.properties.dtype} of {tuple(saved.size)}, "
                    f"expected {part.values.dtype} of {part.shape}"
                )
            found = create_read_items_for_chunk_list(key, saved, [_chunk(part.box)])
            if sum(item.lengths.numel() for item in found) != part.box.elements:
                raise RunError(f"the checkpoint holds {key} only in part")
            items += found
        return LoadPlan(items)

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        raise RunError(f"the checkpoint has bytes for {read_item.dest_index.fqn}, expected numbers")

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        part = self._parts[read_item.dest_index.fqn]
        where = tuple(
            slice(offset, offset + length)
            for offset, length in zip(read_item.dest_offsets, read_item.lengths, strict=True)
        )
        return part.values[where]

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        pass  # it was read into the very memory that training uses


def save_checkpoint(executor: Executor, folder: str | Path, progress: Progress) -> Path:
    """Write the state of all ranks; every rank of the plan calls this at the same point.

    The checkpoint has its name only when it is whole: a kill leaves the ones before. The newest two
    stay. Returns its folder.
    """
    folder = Path(folder)
    final = folder / f"step-{progress.iteration:08d}"
    making = folder / f".{final.name}.part"
    first = executor.place.rank == 0
    if first:
        shutil.rmtree(making, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
    _barrier()
    executor.optimizer.ensure()
    parts = list(kept_parts(executor))
    save({"parts": parts}, storage_writer=FileSystemWriter(making), planner=_BoxWriter())
    if first:
        facts = {
            "schema": _SCHEMA,
            "iteration": progress.iteration,
            "samples": progress.samples,
            "config_hash": executor.plan.model.config_hash,
            "plan": plan_to_document(executor.plan),
        }
        write_atomically(making / _FACTS, json.dumps(facts))
        shutil.rmtree(final, ignore_errors=True)
        os.replace(making, final)
        for old in _checkpoints(folder)[:-_KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    _barrier()
    return final


def _checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints of a folder, oldest first."""
    return sorted(path for path in folder.glob("step-*") if (path / _FACTS).is_file())


def newest_checkpoint(folder: str | Path) -> Path:
    """The newest whole checkpoint of a folder. Raises RunError where there is none."""
    found = _checkpoints(Path(folder))
    if not found:
        raise RunError(f"{folder}: holds no checkpoint; leave out --resume to start anew")
    return found[-1]


def progress_of(path: Path, model: Model) -> Progress:
    """Where training stands in a checkpoint.

    Raises RunError where it cannot be read, or is of another model.
    """
    try:
        facts = json.loads((path / _FACTS).read_text(encoding="utf-8"))
        progress = Progress(int(facts["iteration"]), int(facts["samples"]))
        config_hash = facts["config_hash"]
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"{path}: is no checkpoint that can be read ({error})") from None
    if config_hash != model.config_hash:
        raise RunError(
            f"{path}: is of a model with config hash {config_hash}, the plan's "
            f"{model.name} has {model.config_hash}"
        )
    return progress


def load_checkpoint(executor: Executor, path: Path) -> Progress:
    """Fill the state of all ranks from a checkpoint, whatever plan wrote it; where it stands.

    Every rank of the plan calls this. Raises RunError where the checkpoint is of another model,
    precision or optimizer, or is not whole.
    """
    progress = progress_of(path, executor.plan.model)
    executor.optimizer.prepare(progress.iteration)
    # A rank that failed here alone would leave the others waiting: load gathers errors from all.
    try:
        load(
            {"parts": state_of(executor)},
            storage_reader=FileSystemReader(path),
            planner=_BoxReader(),
        )
    except CheckpointException as error:
        causes = [failure[0] for failure in error.failures.values()]
        raise RunError(f"{path}: {causes[0]}") from None
    return progress


def _barrier() -> None:
    if dist.get_world_size() > 1:
        dist.barrier()
