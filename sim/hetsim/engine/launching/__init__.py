"""Control of launches: start, boundaries between stages, completion, stop."""
