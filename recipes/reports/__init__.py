"""What a run or a recipe looks like: figures, one page, a picture in the terminal."""
