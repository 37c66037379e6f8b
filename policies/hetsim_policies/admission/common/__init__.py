"""What several policies of this folder share; nothing here has a name that a scenario can say."""
