"""Runs a plan for real on NCCL or gloo: parallel layers, 1F1B, gradient synchronisation."""
