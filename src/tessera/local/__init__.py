"""Local features: extraction, aggregation, the inverted file, verification, and tokens over them."""
