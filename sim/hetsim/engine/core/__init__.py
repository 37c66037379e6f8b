"""The state of a run, what is written down of it, when the policy is asked, and how it is blamed."""
