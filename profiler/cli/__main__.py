"""`python -m profiler.cli`: the door where the `arachne-prof` script is not installed."""

from profiler.cli import main

main(prog_name="arachne-prof")
