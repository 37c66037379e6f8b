"""Environments for scheduling and admission: episodes, actions, rewards."""
