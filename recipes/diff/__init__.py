"""What differs between recipes, value by value, and what it comes to: `kilobatch recipes diff`."""
