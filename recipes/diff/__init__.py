"""`kilobatch recipes diff`: the values that differ between recipes, and their effect."""
