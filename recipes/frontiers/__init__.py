"""A frontier as checked data: the search of each of its points, the values to try first, and the fit of the outcome.

What a frontier asks and concludes enters; running it is `trainers.frontier`. Imports from `recipes.search_space` and
the rooms below it.
"""
