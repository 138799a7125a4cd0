"""Takedown: what holds documents that must go, the proof that nothing of them is left, and the certificate.

<home>/takedowns/<digest>/list-<digest>.yaml   the list with the ids of a source's near-duplicates added
<home>/takedowns/<digest>/certificate.json     what was asked, found and removed, with digests
<home>/takedowns/<digest>/certificate.md

An id names a record within its source: in another source it may be that of another record.
"""
