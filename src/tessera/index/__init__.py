"""Search among descriptors: codecs on FAISS, an exact tail, tombstones, query expansion and global re-ranking.

Import from the modules (`tessera.index.build`, `tessera.index.expansion`, ...): this package loads nothing by itself.
"""
