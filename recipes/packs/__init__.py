"""What stands in a pack, whether a rerun holds what it claims, and pages of many packs.

Whatever needs both a recipe and what is known about it enters. Imports from every other room of `recipes`.
"""
