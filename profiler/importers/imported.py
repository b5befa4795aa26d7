"""What an import hands over: whole profile runs, and by name the rows it would not take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from specs.layer import LayerType
from specs.model import Model
from specs.profile import EntryStatus, HostProfile, LayerKey, LayerProfile, LinkProfile, NewRun
from specs.workload import DType, Optimizer, Recompute


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What the person who imports says about files that do not say it themselves.

    models: only these (Sailor), or the model the files are of (Metis, AMP, CSV). copies: which of
    Sailor's two copies of the profiles. gpus: name in the files -> catalogue name. micro_batches:
    sizes to which AMP's seconds per sample are multiplied. origin, licence: words that the run is
    to carry. The rest is the workload the profiles were taken at; None = the model's default.
    """

    models: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    gpus: Mapping[str, str] = field(default_factory=dict)
    micro_batches: tuple[int, ...] = (1,)
    seq_len: int | None = None
    dtype: DType | None = None
    optimizer: Optimizer | None = None
    recompute: Recompute = Recompute.NONE
    origin: str = ""
    licence: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that was not taken: where it stands, why, and its key where it has one.

    status: REFUSED by the import, or what the source says became of the key.
    """

    where: str
    reason: str
    key: LayerKey | None = None
    status: EntryStatus = EntryStatus.REFUSED


@dataclass(frozen=True, slots=True)
class ImportedRun:
    """One profile run as read from files, not yet in a store.

    title: what a person calls it. models: those whose layer types the rows are of; layer_types:
    further ones that came without a model. notes: what a reader of these figures has to know.
    """

    title: str
    new: NewRun
    models: tuple[Model, ...] = ()
    layer_types: tuple[LayerType, ...] = ()
    layers: tuple[LayerProfile, ...] = ()
    links: tuple[LinkProfile, ...] = ()
    hosts: tuple[HostProfile, ...] = ()
    refused: tuple[Refused, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Layer, link and host rows in all."""
        return len(self.layers) + len(self.links) + len(self.hosts)


Importer = Callable[[Path, ImportOptions], list[ImportedRun]]
