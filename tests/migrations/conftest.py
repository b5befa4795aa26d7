"""The fixtures of the store's tests."""

from tests.db.conftest import (
    backend,
    empty_url,
    postgres_template,
    server,
    sqlite_template,
    url,
)

__all__ = ["backend", "empty_url", "postgres_template", "server", "sqlite_template", "url"]
