"""Scenarios that ship with hetsim, one folder a theme; `hetsim list scenarios` shows them."""
