"""The errors that Tokenmill raises on purpose.

    TokenmillError
    ├── SettingsError     a name or value in the settings is wrong; nothing has run
    ├── SourceError       an input is missing, empty, or not what it claims to be
    ├── UnreachableError  a network or object store does not answer: worth another try
    ├── StoreError        the store cannot be written, or holds something damaged
    ├── StageError        a stage could not finish
    │   ├── LedgerError   read != kept + removed + failed
    │   ├── CanaryError   an implausible share of the records failed, or nothing was kept
    │   ├── LimitError    a stage was stopped because it took too long, or too much memory
    │   └── EngineError   workers were lost, or the cluster cannot be used; what is finished is kept
    ├── TrainingError     the trainer stopped
    ├── AuditError        a question that the records cannot answer
    └── ServiceError      a server could not be started, or kept running

A message says the value, where it is, and what to do. Every class takes one string, so that an
error raised in a worker process arrives whole in the process that started it.
"""

import errno


class TokenmillError(Exception):
    """An error with a cause that the user can see and mend."""


class SettingsError(TokenmillError):
    """A wrong name or value in the settings, found before anything runs."""


class SourceError(TokenmillError):
    """An input that is missing, empty, truncated, or of another format."""


class UnreachableError(TokenmillError):
    """Something beyond this machine does not answer. After this error alone a stage is tried again."""


class StoreError(TokenmillError):
    """The store cannot be written (disk full, no permission) or holds damaged files."""


class StageError(TokenmillError):
    """A stage that could not finish."""


class LedgerError(StageError):
    """Books that do not balance: some record has no fate, or two."""


class CanaryError(StageError):
    """A result that is formally complete and cannot be right."""


class LimitError(StageError):
    """A stage that took more time or memory than `execution` allows."""


class EngineError(StageError):
    """Workers that were lost, or a cluster that cannot be used: a rerun goes on with what was finished."""


class TrainingError(TokenmillError):
    """The training process ended with an error."""


class AuditError(TokenmillError):
    """A question to the records that names something they do not hold, or that cannot be asked so."""


class ServiceError(TokenmillError):
    """A server that could not be started, or that dies again and again."""


MAY_PASS = (ConnectionError, TimeoutError)
MAY_PASS_BY_ERRNO = {errno.EBUSY, errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH}
MAY_PASS_BY_NAME = {
    # aiohttp, botocore, fsspec, httpx and requests: this module imports none of them
    "ClientConnectionError",
    "ClientPayloadError",
    "ConnectTimeoutError",
    "ConnectionClosedError",
    "ConnectionError",
    "EndpointConnectionError",
    "FSTimeoutError",
    "HTTPClientError",
    "IncompleteRead",
    "ReadTimeoutError",
    "ResponseStreamingError",
    "Timeout",
    "TransportError",
    "gaierror",
}
MAY_PASS_BY_STATUS = {408, 429, 500, 502, 503, 504}


def may_pass(error: BaseException | None) -> bool:
    """Whether an error, or one that it comes from, is of a kind that may be gone at the next try."""
    while error is not None:
        if isinstance(error, (UnreachableError, *MAY_PASS)):
            return True
        if any(base.__name__ in MAY_PASS_BY_NAME for base in type(error).__mro__):
            return True
        if isinstance(error, OSError) and error.errno in MAY_PASS_BY_ERRNO:
            return True
        if getattr(error, "status", None) in MAY_PASS_BY_STATUS:  # aiohttp.ClientResponseError
            return True
        error = error.__cause__
    return False


def error_kind(error: BaseException) -> type[TokenmillError]:
    """What to raise of a source that cannot be read: whether another try may help."""
    return UnreachableError if may_pass(error) else SourceError


def reading_error(error: BaseException, uri: str, damage: str) -> TokenmillError:
    """What to raise of a file that cannot be read: it is away, there is none, or what `damage` says."""
    if may_pass(error):
        return UnreachableError(f"cannot reach {uri}: {(error.__cause__ or error)!r}")
    if isinstance(error, FileNotFoundError):
        return SourceError(f"there is no file {uri}")
    return SourceError(damage)
