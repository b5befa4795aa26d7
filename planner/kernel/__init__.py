"""The compiled inner loop of the planner: fill and price on dense arrays (DESIGN section 8).

`planner.kernel.engine` is its face. Everything here is held equal to the readable reference
(planner/cost.py, memory.py, packing.py, fill/) by tests/planner/test_kernel.py.
"""
