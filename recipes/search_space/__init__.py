"""A search as checked data: ranges and their conditions, tried on the recipe before anything starts.

What a search may vary enters; sampling and running trials is `trainers.search`. Imports from `recipes.reading` and the
rooms below it.
"""
