"""The store: typed tables, one Store, import and export."""
