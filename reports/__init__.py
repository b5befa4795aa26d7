"""HTML pages and figures from the store."""
