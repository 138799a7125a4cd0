"""Near-duplicates: MinHash signatures, bands, clusters, and the removal of all but the first of each.

Signatures are DataTrove's (same shingles, same hash functions); two documents are candidates if they agree
in all rows of one band; clusters are the connected components of the candidates.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasketch import MinHash
from datatrove.data import Document
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.dedup import MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig
from datatrove.utils.hashing import HashConfig
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from pipeline_config.curation import Deduplication
from tasks.steps.shards import DecidingStep, Fate, TableWriter, join_parent, removed

CLUSTER_SCHEMA = pa.schema(
    [
        ("shard", pa.int64()),
        ("row", pa.int64()),
        ("id", pa.string()),
        ("cluster", pa.string()),
        ("survivor", pa.string()),
        ("similarity", pa.float64()),
        ("kept", pa.bool_()),
    ]
)


def signature_schema(settings: Deduplication) -> pa.Schema:
    """Rows of signatures: where the document is, and its bands x rows hashes, little-endian uint64."""
    width = 8 * settings.bands * settings.rows_per_band
    return pa.schema([("row", pa.int64()), ("id", pa.string()), ("signature", pa.binary(width))])


def signature_block(settings: Deduplication, folder: str = ".") -> MinhashDedupSignature:
    """DataTrove's signature step, used for its shingles and hash functions."""
    config = MinhashConfig(
        n_grams=settings.n_grams,
        num_buckets=settings.bands,
        hashes_per_bucket=settings.rows_per_band,
        seed=settings.seed,
        hash_config=HashConfig(precision=64, hash_fc="xxhash"),
    )
    return MinhashDedupSignature(folder, config)


class WriteSignatures(PipelineStep):
    """Writes a shard's signatures, or none for a shard that is not compared.

    A text shorter than a shingle has no signature and is nobody's duplicate.
    """

    type, name = "DEDUP", "signatures"

    def __init__(self, folder: str, settings: Deduplication, compared: list[bool]):
        super().__init__()
        self.folder = folder
        self.settings = settings
        self.compared = compared

    def run(self, data: Iterator[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        block = signature_block(self.settings)
        path = Path(self.folder) / "signatures" / f"part-{rank:05d}.parquet"
        writer = TableWriter(path, signature_schema(self.settings))
        for row, document in enumerate(data if self.compared[rank] else ()):
            shingles = block.get_shingles(document.text)
            if shingles.size:
                signature = np.asarray(block.get_signature(shingles), dtype="<u8").tobytes()
                writer.add({"row": row, "id": document.id, "signature": signature})
            yield document
        writer.close()


def duplicate_pairs(signatures: np.ndarray, bands: int) -> np.ndarray:
    """Pairs of documents that agree in a band, [pair, 2]; equal band keys are linked in a chain.

    Args:
        signatures: [document, bands * rows] uint64.
    """
    rows = signatures.shape[1] // bands
    pairs = []
    for band in range(bands):
        keys = np.ascontiguousarray(signatures[:, band * rows : (band + 1) * rows])
        keys = keys.view(np.dtype((np.void, 8 * rows))).ravel()
        order = np.argsort(keys, kind="stable")
        same = keys[order][1:] == keys[order][:-1]
        pairs.append(np.stack([order[:-1][same], order[1:][same]], axis=1))
    return np.concatenate(pairs)


def first_of_cluster(pairs: np.ndarray, documents: int) -> np.ndarray:
    """For each document, the first document of its cluster, [document]."""
    links = coo_array((np.ones(len(pairs), dtype=bool), (pairs[:, 0], pairs[:, 1])), (documents, documents))
    _, component = connected_components(links, directed=False)
    firsts = np.full(component.max(initial=-1) + 1, documents)
    np.minimum.at(firsts, component, np.arange(documents))
    return firsts[component]


def similarity(one: np.ndarray, other: np.ndarray) -> float:
    """Jaccard similarity of two documents as their signatures estimate it."""
    number = len(one)
    unused = np.ones((2, number), dtype=np.uint64)  # they make signatures, and these are made
    sketches = [
        MinHash(num_perm=number, hashvalues=values, scheme="affine64", permutations=unused)
        for values in (one, other)
    ]
    return float(sketches[0].jaccard(sketches[1]))


class FindClusters(PipelineStep):
    """Reads the signatures of all shards and writes a table of the documents in clusters."""

    type, name = "DEDUP", "clusters"

    def __init__(self, shards: list[str], path: str, settings: Deduplication):
        super().__init__()
        self.shards = shards
        self.path = path
        self.settings = settings

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        join_parent()
        places, signatures = self._load()
        writer = TableWriter(Path(self.path), CLUSTER_SCHEMA)
        if len(signatures):
            pairs = duplicate_pairs(signatures, self.settings.bands)
            firsts = first_of_cluster(pairs, len(signatures))
            in_cluster = np.union1d(pairs[:, 0], pairs[:, 1])
            for index in in_cluster:
                shard, row, identity = places[index]
                survivor = places[firsts[index]][2]
                writer.add(
                    {
                        "shard": shard,
                        "row": row,
                        "id": identity,
                        "cluster": "{}:{}".format(*places[firsts[index]][:2]),  # ids may repeat
                        "survivor": survivor,
                        "similarity": similarity(signatures[index], signatures[firsts[index]]),
                        "kept": bool(firsts[index] == index),
                    }
                )
        writer.close()
        yield from ()

    def _load(self) -> tuple[list[tuple[int, int, str]], np.ndarray]:
        places, blocks = [], []
        width = self.settings.bands * self.settings.rows_per_band
        for shard, path in enumerate(self.shards):
            table = pq.read_table(path)
            places += [
                (shard, row, identity)
                for row, identity in zip(table["row"].to_pylist(), table["id"].to_pylist(), strict=True)
            ]
            data = b"".join(table["signature"].to_pylist())
            blocks.append(np.frombuffer(data, dtype="<u8").reshape(-1, width))
        return places, np.concatenate(blocks) if blocks else np.empty((0, width), dtype="<u8")


class RemoveDuplicates(DecidingStep):
    """Removes every document of a cluster but its first."""

    name = "near-duplicates"

    def __init__(self, clusters: str):
        super().__init__()
        self.clusters = clusters

    def run(self, data: Iterator[Document], rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        table = pq.read_table(self.clusters, filters=[("shard", "=", rank)])
        self.duplicates = {entry["row"]: entry for entry in table.to_pylist() if not entry["kept"]}
        self.row = -1
        yield from super().run(data, rank, world_size)

    def decide(self, document: Document) -> Fate | None:
        self.row += 1
        duplicate = self.duplicates.get(self.row)
        if duplicate is None:
            return None
        return removed("near_duplicate", f"{duplicate['similarity']:.3f} of {duplicate['survivor']}")
