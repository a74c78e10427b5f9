"""The catalogue: SQLite, the truth. Its tables, what a reader sees, what a writer does, what can be saved."""
