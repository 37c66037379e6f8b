"""The engine's answers to the queries of policies (`View`)."""
