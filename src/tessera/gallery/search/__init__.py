"""One search: the query, the engine, what follows it, and the rows of the catalogue."""
