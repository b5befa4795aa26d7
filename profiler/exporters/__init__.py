"""Profile runs as files for people and for other planners: one module a layout."""

from profiler.exporters import csv, metis, sailor
from profiler.exporters.run_rows import Exporter

EXPORTERS: dict[str, Exporter] = {"csv": csv.write, "metis": metis.write, "sailor": sailor.write}
