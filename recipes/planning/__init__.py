"""Arithmetic on a checked recipe: its updates, its rates, its random draws, and the time a cluster takes for it.

Pure functions of a recipe, a data set and a cluster enter; nothing here reads a file. Imports from `recipes.schema`.
"""
