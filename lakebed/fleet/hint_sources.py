"""Where hints come from, by its URL: ``kafka://HOST:PORT/TOPIC`` or ``sqs://QUEUE``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from urllib.parse import urlsplit

from lakebed.errors import InvalidInput
from lakebed.fleet.hearing import Hearing
from lakebed.fleet.hint_reader import HintReader, Messages
from lakebed.fleet.kafka_hints import kafka_messages
from lakebed.fleet.sqs_hints import sqs_messages
from lakebed.listeners.listener import KafkaTopic

_QUEUE = re.compile(r"[A-Za-z0-9_-]{1,80}(\.fifo)?")
_ACCOUNT = re.compile(r"[0-9]{12}")


def hint_readers(urls: Sequence[str], kafka_config: Mapping[str, str], hearing: Hearing) -> list[HintReader]:
    """A reader for each URL, not started. ``kafka_config``: settings of librdkafka for all topics. Raises InvalidInput."""
    if kafka_config and not any(url.startswith("kafka:") for url in urls):
        raise InvalidInput("--kafka-config is for --hints kafka://HOST:PORT/TOPIC, and there is none")
    found = [(url, *_source(url, kafka_config)) for url in dict.fromkeys(urls)]
    return [HintReader(url, messages, partial(hearing.received, source=source)) for url, source, messages in found]


def _source(url: str, kafka_config: Mapping[str, str]) -> tuple[str, Callable[[], Messages]]:
    """The kind of a source, and what connects to it."""
    parts = urlsplit(url)
    names = [parts.netloc, *parts.path.removeprefix("/").split("/")] if parts.path else [parts.netloc]
    if not parts.query and not parts.fragment:
        if parts.scheme == "kafka" and len(names) == 2 and all(names) and "@" not in names[0]:
            return "kafka", partial(kafka_messages, KafkaTopic(servers=names[0], topic=names[1], config=kafka_config))
        if parts.scheme == "sqs" and _QUEUE.fullmatch(names[-1]) and len(names) <= 2:
            account = names[0] if len(names) == 2 else None
            if account is None or _ACCOUNT.fullmatch(account):
                return "sqs", partial(sqs_messages, names[-1], account)
    raise InvalidInput(f"hints come from kafka://HOST:PORT/TOPIC, sqs://QUEUE or sqs://ACCOUNT/QUEUE; this is {url!r}")
