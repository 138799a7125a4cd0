"""The quality rules and what they count: words and sentences as DataTrove has them, made once."""
