"""Measuring this host for real: what to measure, in which processes, and how it is timed."""
