"""`kilobatch recipes diff`: the values that differ between recipes, and their effect.

Comparisons of opened recipes enter. Imports from every other room of `recipes`.
"""
