"""Step times of language models from measured kernels, and their intervals."""
