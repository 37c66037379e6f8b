"""Hybrid policies: static plans and dynamic decisions together."""
