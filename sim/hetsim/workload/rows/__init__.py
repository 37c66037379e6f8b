"""Parts of readers: lines, rows, columns and joins of files of any size."""
