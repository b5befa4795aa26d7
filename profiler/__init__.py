"""Measures layers and links of this host, estimates for others, imports what others measured."""
