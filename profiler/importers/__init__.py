"""What others measured, read from their files: one module and one function a format."""

from profiler.importers import amp, csv, metis, reference, sailor
from profiler.importers.imported import Importer

IMPORTERS: dict[str, Importer] = {
    "sailor": sailor.read,
    "reference": reference.read,
    "csv": csv.read,
    "metis": metis.read,
    "amp": amp.read,
}
