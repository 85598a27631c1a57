"""A search as checked data: ranges, conditions, and recipes cut short."""
