"""What answers nearest-neighbour queries: FAISS here, Milvus elsewhere. Caches of the catalogue."""
