"""Code that several policies of this folder share; scenarios cannot name it."""
