"""Where personal values are in a text."""
