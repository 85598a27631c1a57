"""A search as checked data: ranges, conditions, and recipes cut short.

What a search may vary enters; sampling and running trials is `trainers.search`. Imports from `recipes.reading` and the
rooms below it.
"""
