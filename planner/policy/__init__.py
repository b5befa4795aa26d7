"""The learned planner: a policy that picks structural templates (DESIGN section 9)."""
