"""Building blocks of readers: lines, rows, columns, joins of files of any size."""
