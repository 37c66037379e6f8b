"""Scheduling and admission step by step: episodes, actions, rewards."""
