"""The settings of a run: frozen pydantic models, one section per stage.

Every section decides the output of its stage and is part of that stage's key, except `execution`, which
only says how the work is done. Section names are the stage names; those of curation are in `curation`.
"""

from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from pipeline_config.curation import (
    Deduplication,
    LanguageIdentification,
    PiiScrubbing,
    QualityFiltering,
    Status,
    TextExtraction,
    UrlFiltering,
)
from pipeline_config.executors import ExecutorSettings
from pipeline_config.section import Count, Section, Share

LanguageCode = Annotated[str, Field(pattern=r"^[a-z]{3}$")]
DUMP = "{dump}"  # stands for the name of a snapshot

StageName = Literal[
    "sample_crawl",
    "document_import",
    "url_filtering",
    "text_extraction",
    "language_identification",
    "quality_filtering",
    "deduplication",
    "pii_scrubbing",
    "document_split",
    "bpe_training",
    "packing",
    "corpus_publication",
    "training",
    "text_generation",
    "model_publication",
]
STAGES: tuple[StageName, ...] = get_args(StageName)  # in the order of the pipeline

CleaningStage = Literal["language_identification", "quality_filtering", "deduplication", "pii_scrubbing"]
CLEANING_STAGES: tuple[CleaningStage, ...] = (
    "language_identification",
    "quality_filtering",
    "deduplication",
    "pii_scrubbing",
)


class FieldMapping(Section):
    """Which fields of a source's records hold what a document needs."""

    text: str = "text"
    """Field with the text. Required in every record."""
    id: str | None = "id"
    """Field with the identity; where it is absent, source, file and line number make one."""
    url: str | None = "url"
    """Field with the address, if the records have one."""
    date: str | None = "date"
    """Field with the date, if the records have one."""


class IndexFilter(Section):
    """Which records of Common Crawl's columnar index are read. An empty choice takes all."""

    languages: tuple[LanguageCode, ...] = ()
    """Languages as the index has them (ISO 639-3, such as `eng`): one of a record's must be among them."""
    keep_unknown_language: bool = True
    """Take records whose language the index does not know."""
    statuses: tuple[Status, ...] = ()
    """HTTP status codes (`fetch_status`)."""
    mimes: tuple[str, ...] = ()
    """Media types (`content_mime_detected`)."""


class Source(Section):
    """Where documents come from."""

    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Short name; it appears in every document and every table."""
    kind: Literal["warc", "documents", "installed_documentation"]
    """`warc`: a crawl. `documents`: texts that exist already (JSONL, Parquet, Hugging Face).
    `installed_documentation`: a small crawl written from the docstrings of the installed packages."""
    base: str = ""
    """Folder or URL that `uris` are relative to. It is not part of any key: only content is."""
    uris: tuple[str, ...] = ()
    """Files, globs, or `*.paths.gz` lists of files, relative to `base`; any fsspec URL. With `{dump}` in them
    the source stands for every snapshot whose name fits `dump`."""
    index: tuple[str, ...] = ()
    """Files or globs of Common Crawl's columnar index (Parquet), relative to `base`, instead of `uris`: only
    the records that pass `index_filter` and the URL filter are fetched, by themselves. The names of the WARC
    files in it are relative to `base`."""
    index_filter: IndexFilter = IndexFilter()
    """Which records of the index are read."""
    max_warcs: Count | None = None
    """Take at most this many WARC files, in the order of `uris`."""
    dataset: str | None = None
    """Name of a Hugging Face dataset (or a local folder that `datasets` can load), instead of `uris`."""
    dataset_config: str | None = None
    """Configuration of that dataset."""
    dataset_split: str = "train"
    """Split of that dataset."""
    dataset_shards: Count = 1
    """Shards that the dataset is read in."""
    revision: str = ""
    """Version of the source, as its publisher names it. Required for a dataset."""
    dump: str = ""
    """Name of the crawl snapshot, such as `CC-MAIN-2024-10`; with `{dump}` in `uris` a pattern, such as
    `CC-MAIN-2024-*`."""
    snapshots: str = ""
    """Where the names of the snapshots are listed, for storage that cannot be listed itself: a text file with
    a name a line, or JSON such as Common Crawl's collinfo.json. Relative to `base`."""
    since: str = ""
    """Take no snapshots whose names sort before this one."""
    licence: str = "unknown"
    """Licence or terms of the texts, recorded with the corpus."""
    weight: float = Field(default=1.0, gt=0)
    """Share of the training tokens in proportion to the other sources' weights."""
    stages: tuple[CleaningStage, ...] = CLEANING_STAGES
    """Cleaning stages that the documents of this source pass."""
    fields: FieldMapping = FieldMapping()
    """Field mapping, for `documents`."""
    takedown: tuple[str, ...] = ()
    """Lists of documents that must go: YAML files (any fsspec URL) with `reason`, `date` and `entries`,
    each a `url`, `url_prefix`, `domain` or `id`. Their content is part of the key."""

    @property
    def is_pattern(self) -> bool:
        """Whether it stands for every snapshot that fits `dump`."""
        return any(DUMP in uri for uri in (*self.uris, *self.index))

    @model_validator(mode="after")
    def _has_an_input(self) -> "Source":
        if self.kind == "installed_documentation":
            return self
        if self.max_warcs and self.kind != "warc":
            raise ValueError("max_warcs is for sources of kind 'warc'")
        if self.index and (self.kind != "warc" or self.max_warcs):
            raise ValueError("index is for sources of kind 'warc', without max_warcs")
        if self.index_filter != IndexFilter() and not self.index:
            raise ValueError("index_filter is for sources with an index")
        if self.dataset and self.kind != "documents":
            raise ValueError("dataset is for sources of kind 'documents'")
        pattern = self.is_pattern
        if pattern and not self.dump:
            raise ValueError(f"uris with {DUMP} need a pattern of snapshot names as dump")
        if not pattern and (self.snapshots or self.since):
            raise ValueError(f"snapshots and since are for sources with {DUMP} in uris")
        if sum(map(bool, (self.uris, self.dataset, self.index))) != 1:
            raise ValueError("give either uris or dataset or, of a crawl, index")
        if self.dataset and not self.revision:
            raise ValueError("a dataset needs its revision (a commit hash), or its content cannot be named")
        return self


class SampleCrawl(Section):
    """A small crawl written from the documentation of the installed Python packages."""

    max_text_bytes: int = Field(default=8_000_000, ge=10_000)
    """Docstring bytes to render at most; modules are taken in a fixed pseudo-random order."""
    min_docstring_characters: Count = 300
    """Shorter docstrings are left out."""
    warc_files: int = Field(default=4, ge=1, le=1000)
    """WARC files to write."""


class DocumentSplit(Section):
    """Training and validation documents, by a hash of the id: stable when documents are added."""

    validation_share: float = Field(default=0.02, gt=0, lt=1)
    """Share of the documents held out."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Another seed holds other documents out."""


class BpeTraining(Section):
    """Byte-level BPE, trained on the training split only."""

    vocabulary_size: int = Field(default=4096, ge=257, le=1_000_000)
    """Entries: 256 bytes, the merges, and the special token."""
    max_training_bytes: int = Field(default=100_000_000, ge=1000)
    """UTF-8 bytes of text to train on at most, spread evenly over the documents."""
    min_frequency: Count = 2
    """A pair that is rarer is not merged."""


class Packing(Section):
    """Token shards: every document's tokens and the end-of-document token."""

    batch_documents: Count = 256
    """Documents encoded at once."""


class ModelSettings(Section):
    """Shape of the GPT."""

    layers: Count = 4
    """Transformer blocks."""
    heads: Count = 4
    """Attention heads; they divide `width`."""
    width: Count = 128
    """Width of the residual stream."""
    max_context: int = Field(default=256, ge=2)
    """Tokens in a row, and the longest text that the model can read."""

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "ModelSettings":
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}")
        return self


class Training(Section):
    """Pretraining."""

    model: ModelSettings = ModelSettings()
    """Shape of the GPT."""
    steps: Count = 300
    """Optimizer steps."""
    rows_per_step: Count = 16
    """Rows (of max_context tokens) in a step, over all processes."""
    processes: int = Field(default=1, ge=1, le=1024)
    """Processes that torchrun starts; they divide `rows_per_step`."""
    threads: int = Field(default=2, ge=1, le=256)
    """CPU threads per process. They decide the order of sums, so they are part of the key."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes the GPU where there is one."""
    learning_rate: float = Field(default=1e-3, gt=0, le=1)
    """Peak learning rate; linear warm-up, then cosine decay to a tenth."""
    warmup_steps: int = Field(default=30, ge=0)
    """Steps of warm-up."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decay of matrices."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are clipped to this norm."""
    seed: int = Field(default=1337, ge=0, lt=2**63)
    """Seed of the initial weights and of the order of the rows."""
    validation_every_steps: Count = 50
    """Steps between validations."""
    validation_rows: Count = 64
    """Rows to validate on at most, the same ones every time."""
    checkpoint_every_steps: Count = 100
    """Steps between checkpoints to resume from."""

    @model_validator(mode="after")
    def _processes_divide_rows(self) -> "Training":
        if self.rows_per_step % self.processes:
            raise ValueError(
                f"rows_per_step {self.rows_per_step} is not divisible by processes {self.processes}"
            )
        return self


class TextGeneration(Section):
    """A sample from the final checkpoint."""

    prompt: str = "The"
    """Text to continue."""
    max_tokens: Count = 80
    """Tokens to generate at most."""
    temperature: float = Field(default=0.8, ge=0, le=10)
    """0 takes the most probable token; below 1 is sharper, above 1 flatter."""
    top_k: int = Field(default=50, ge=0)
    """Sample from this many most probable tokens; 0 for all."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of the sampler."""


class Evaluation(Section):
    """The loss of a checkpoint on the validation split."""

    max_rows: Count = 100_000
    """Rows to evaluate on at most, evenly spread over the split."""
    batch_rows: Count = 16
    """Rows at once. They decide the order of sums, so they are part of the key."""


class CorpusPublication(Section):
    """The corpus with its card and report."""

    samples: int = Field(default=10, ge=0, le=1000)
    """Documents to show: of those kept, and of those removed for each reason."""
    domains: Count = 20
    """Domains to list, those with the most documents."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Another seed shows other documents."""


class ModelPublication(Section):
    """The checkpoint with its card."""

    name: str = Field(default="", max_length=100, pattern=r"^[A-Za-z0-9._-]*$")
    """Name of the registered model; empty for `tokenmill-<name of the run>`."""


class Execution(Section):
    """How the work is done. Nothing here changes a byte of the output."""

    workers: int = Field(default=2, ge=1, le=1024)
    """Worker processes of a document stage, at most; on a cluster: tasks that run at the same time."""
    executor: ExecutorSettings = ExecutorSettings()
    """Where they run."""
    until: StageName = STAGES[-1]
    """Last stage to run."""
    from_stage: StageName | None = None
    """Compute this stage and those after it even where the store has their outputs, and compare: other bytes
    for the same key are an error. Stages before it come from the store as usual."""
    max_failed_share: Share = 0.2
    """A stage in which a larger share of the records failed stops the run."""
    max_stage_seconds: Count | None = None
    """Seconds that the child processes of a stage may run; then the stage is stopped. Empty: no limit."""
    max_stage_memory_bytes: int | None = Field(default=None, ge=100_000_000)
    """Memory of a stage's child processes together; above that the stage is stopped. Empty: no limit."""
    retries: int = Field(default=3, ge=0, le=20)
    """How often a stage is tried again after an error that may pass: a network or object store that does not
    answer. Each wait is longer than the one before. Other errors are never tried again."""

    @model_validator(mode="after")
    def _stages_in_order(self) -> "Execution":
        if self.from_stage and STAGES.index(self.from_stage) > STAGES.index(self.until):
            raise ValueError(f"from_stage {self.from_stage} comes after until {self.until}")
        return self


class Settings(Section):
    """Everything that a run is made from."""

    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run, usually the preset's."""
    sources: tuple[Source, ...] = Field(min_length=1)
    """Sources in order of precedence: of two duplicates the first one stays."""
    sample_crawl: SampleCrawl = SampleCrawl()
    url_filtering: UrlFiltering = UrlFiltering()
    text_extraction: TextExtraction = TextExtraction()
    language_identification: LanguageIdentification = LanguageIdentification()
    quality_filtering: QualityFiltering = QualityFiltering()
    deduplication: Deduplication = Deduplication()
    pii_scrubbing: PiiScrubbing = PiiScrubbing()
    document_split: DocumentSplit = DocumentSplit()
    bpe_training: BpeTraining = BpeTraining()
    packing: Packing = Packing()
    corpus_publication: CorpusPublication = CorpusPublication()
    training: Training = Training()
    text_generation: TextGeneration = TextGeneration()
    evaluation: Evaluation = Evaluation()
    model_publication: ModelPublication = ModelPublication()
    execution: Execution = Execution()

    @model_validator(mode="after")
    def _source_names_differ(self) -> "Settings":
        names = [source.name for source in self.sources]
        if len(set(names)) != len(names):
            raise ValueError(f"source names must differ: {', '.join(names)}")
        return self
