"""Compiled parts of the learned planner: episodes, a lean fill, local moves.

They work on the arrays of `planner.kernel` and are held to it by tests/planner/policy.
"""
