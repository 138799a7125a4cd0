"""What is decided by a URL and by what the site says: lists, rules, signals, one spelling."""
