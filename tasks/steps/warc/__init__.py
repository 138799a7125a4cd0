"""Records of WARC and ARC files, damaged or not: where they are, what they hold."""
