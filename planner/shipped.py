"""The example clusters that ship with the planner, by name."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specs.cluster import Cluster

DEFAULT_MODEL = "llama-3-8b"
DEFAULT_CLUSTER = "mixed-128"


def shipped_clusters() -> list[str]:
    """Names of the clusters that need no file."""
    files = resources.files("planner").joinpath("clusters").iterdir()
    return sorted(f.name.removesuffix(".yaml") for f in files if f.name.endswith(".yaml"))


def cluster_of(reference: str) -> Cluster:
    """The cluster of a file, or of the name of a shipped one.

    Raises SpecError for a file that is not right, or a reference that is neither.
    """
    import yaml

    from specs.cluster import cluster_from_document, load_cluster
    from specs.errors import SpecError

    if reference in shipped_clusters():
        file = resources.files("planner").joinpath("clusters", f"{reference}.yaml")
        return cluster_from_document(yaml.safe_load(file.read_text()), f"{reference}.yaml")
    if not Path(reference).exists():
        raise SpecError(
            f"no cluster {reference!r}: expected a YAML file, or one of: "
            f"{', '.join(shipped_clusters())}"
        )
    return load_cluster(reference)
