"""Steps that look at many documents at once: bounded batches, in order, a bad document costs only itself."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence

from datatrove.data import Document, DocumentsPipeline

from pipeline_config.errors import TokenmillError
from tasks.steps.shards import FATE, DecidingStep, Fate

MOST_DOCUMENTS, MOST_CHARACTERS = 256, 4_000_000  # of a batch


class DecidingInBatches(DecidingStep):
    """Gives documents a fate, a batch at a time. Subclasses implement `decide_batch` and `decide`.

    A batch that raises is decided one by one, so the fates do not depend on what else is in it.
    """

    @abstractmethod
    def decide_batch(self, documents: Sequence[Document]) -> list[Fate | None]:
        """For each document what `decide` gives for it alone."""

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        for batch in batches(data):
            waiting = [document for document in batch if FATE not in document.metadata]
            for document, fate in zip(waiting, self._fates(waiting), strict=True):
                if fate is not None:
                    document.metadata[FATE] = fate
            yield from batch

    def _fates(self, documents: Sequence[Document]) -> list[Fate | None]:
        try:
            return self.decide_batch(documents) if documents else []
        except TokenmillError:
            raise
        except Exception:
            return [self._decide_safely(document) for document in documents]


def batches(documents: DocumentsPipeline) -> Iterator[list[Document]]:
    """The documents in lists of bounded number and, unless one is larger itself, bounded text."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        if batch and (len(batch) >= MOST_DOCUMENTS or characters + len(document.text) > MOST_CHARACTERS):
            yield batch
            batch, characters = [], 0
        batch.append(document)
        characters += len(document.text)
    if batch:
        yield batch
