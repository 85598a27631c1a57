"""Reports on runs and recipes: figures, an HTML page, a picture on the terminal."""
