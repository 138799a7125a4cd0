"""The errors that Tokenmill raises on purpose.

    TokenmillError
    ├── SettingsError     a name or value in the settings is wrong; nothing has run
    ├── SourceError       an input is missing, empty, or not what it claims to be
    ├── StoreError        the store cannot be written, or holds something damaged
    ├── StageError        a stage could not finish
    │   ├── LedgerError   read != kept + removed + failed
    │   ├── CanaryError   an implausible share of the records failed, or nothing was kept
    │   └── EngineError   the cluster lost workers, or cannot be used; finished shards are kept
    ├── TrainingError     the trainer stopped
    └── AuditError        a question that the records cannot answer

A message says the value, where it is, and what to do. Every class takes one string, so that an
error raised in a worker process arrives whole in the process that started it.
"""


class TokenmillError(Exception):
    """An error with a cause that the user can see and mend."""


class SettingsError(TokenmillError):
    """A wrong name or value in the settings, found before anything runs."""


class SourceError(TokenmillError):
    """An input that is missing, empty, truncated, or of another format."""


class StoreError(TokenmillError):
    """The store cannot be written (disk full, no permission) or holds damaged files."""


class StageError(TokenmillError):
    """A stage that could not finish."""


class LedgerError(StageError):
    """Books that do not balance: some record has no fate, or two."""


class CanaryError(StageError):
    """A result that is formally complete and cannot be right."""


class EngineError(StageError):
    """A cluster that lost workers or cannot be used: finished shards are kept, and a rerun goes on."""


class TrainingError(TokenmillError):
    """The training process ended with an error."""


class AuditError(TokenmillError):
    """A question to the records that names something they do not hold, or that cannot be asked so."""
