"""Observations: the window of waiting tasks, the system state, and admission."""
