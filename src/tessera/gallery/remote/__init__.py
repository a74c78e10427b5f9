"""A catalogue beyond one machine: records in a collection of Milvus, descriptors and features in Parquet shards."""
