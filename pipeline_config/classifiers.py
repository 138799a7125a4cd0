"""The settings of classifiers that are trained from labelled texts."""

from pydantic import Field

from pipeline_config.section import Count, Section, Share


class ClassifierTraining(Section):
    """A fastText classifier of documents (Joulin et al. 2016, arXiv:1607.01759).

    Source of the defaults: DataComp-LM (Li et al. 2024, arXiv:2406.11794), whose quality classifier has word
    2-grams and fastText's own defaults else; buckets are fewer, for a model of 80 MB.
    """

    dimensions: int = Field(default=100, ge=10, le=1000)
    """Width of the vectors."""
    epochs: Count = 5
    """Passes over the training texts."""
    learning_rate: float = Field(default=0.1, gt=0, le=10)
    """Learning rate at the start; it falls to zero."""
    word_n_grams: Count = 2
    """Longest word n-grams that are looked at."""
    min_word_count: Count = 1
    """Rarer words are left out."""
    buckets: int = Field(default=200_000, ge=100, le=10_000_000)
    """Rows for the vectors of n-grams."""
    max_documents: Count = 1_000_000
    """Documents of each set to take at most, in their order."""
    held_out_share: Share = 0.1
    """Share of the documents that the model is measured on instead, by a hash of the id."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the model and of the choice of documents to measure on."""
