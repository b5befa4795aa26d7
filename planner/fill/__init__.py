"""The fill: everything about a template that follows by rule (DESIGN section 8)."""
