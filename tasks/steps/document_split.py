"""Document-level split: training or validation, by a hash of the document's id."""

import hashlib

from datatrove.data import Document

from pipeline_config.settings import DocumentSplit

TRAIN, VALIDATION = "train", "validation"


def split_of(identity: str, settings: DocumentSplit) -> str:
    """`train` or `validation`; the same for an id whatever other documents there are."""
    digest = hashlib.sha256(f"{settings.seed}:{identity}".encode()).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    return VALIDATION if position < settings.validation_share else TRAIN


class SplitRoute:
    """Names the split of a document, for the writer."""

    def __init__(self, settings: DocumentSplit):
        self.settings = settings

    def __call__(self, document: Document) -> str:
        return split_of(document.id, self.settings)
