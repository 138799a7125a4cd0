"""Questions to the records: what is in a corpus, where it came from, what was thrown away and why."""
