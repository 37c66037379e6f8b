"""Results of runs: tables, metrics, statistics, comparisons and explanations.

Nothing is imported here: pandas and scipy load with the modules that use them.
"""
