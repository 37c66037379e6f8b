"""Training of policies on a scenario; networks for PyTorch and stable-baselines3."""
