"""Reports on runs and recipes: figures, an HTML page, a picture on the terminal.

Text and pictures made from a run's files or a recipe enter; nothing here trains. Imports from `recipes.reading` and the
rooms below it.
"""
