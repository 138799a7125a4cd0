"""From the bytes of a page to its main text, within limits."""
