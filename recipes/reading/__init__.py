"""From YAML text to a checked recipe: the parser, names, merging, values and their origins."""
