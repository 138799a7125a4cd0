"""Asking again what did not answer: a network or an object store that may come back."""

from collections.abc import Callable
from logging import LoggerAdapter
from typing import Any, TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from pipeline_config.errors import UnreachableError

T = TypeVar("T")
BACKOFF_SECONDS, BACKOFF_JITTER = 2, 0.5  # 2, 4, 8 seconds and up to half as long again


def patiently(ask: Callable[..., T], *arguments: Any, retries: int, log: LoggerAdapter[Any]) -> T:
    """What a question gives, asked again if there is no answer.

    Raises:
        UnreachableError: there was none, again and again.
    """
    attempts = Retrying(
        retry=retry_if_exception_type(UnreachableError),
        stop=stop_after_attempt(1 + retries),
        wait=wait_exponential_jitter(multiplier=BACKOFF_SECONDS, jitter=BACKOFF_SECONDS),
        before_sleep=lambda state: log.warning("%s: asking again", state.outcome.exception()),
        reraise=True,
    )
    return attempts(ask, *arguments)
