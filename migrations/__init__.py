"""Alembic revisions of the store."""
