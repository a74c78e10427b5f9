"""A damaged catalogue: found, read page by page without SQLite, made anew."""
