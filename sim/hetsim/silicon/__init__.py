"""Step times of language models from measured kernels, and their 90 % intervals."""
