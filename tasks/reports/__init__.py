"""Cards and reports: what a corpus and a model are, for people."""
