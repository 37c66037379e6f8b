"""What readers share: lines, rows, columns and joins of files of any size."""
