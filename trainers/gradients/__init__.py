"""From backward to one mean gradient on all workers: the flat buffer, buckets, the exchange, loss scale and norms."""
