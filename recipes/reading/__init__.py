"""From YAML text to a checked recipe: the parser, names, merging, values and their origins.

Whatever reads or writes a YAML file enters, and checks that name a line of it. Imports from `recipes.schema` and
`recipes.planning`.
"""
