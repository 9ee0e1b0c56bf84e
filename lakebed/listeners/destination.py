"""Where events are delivered to, as the loop of a delivery sees it: a function of this process, a topic of Kafka, or a webhook.

**Webhooks.** Events are delivered by one POST an event, with the CloudEvent as its body, signed as Standard Webhooks has it.

    webhook-id: <table id>/<version>/<index>      the same whenever the event is sent: by it a receiver knows what it has
    webhook-timestamp: 1700000000                 when this attempt was made, in epoch seconds
    webhook-signature: v1,<base64 of HMAC-SHA256(secret, id.timestamp.body)>

1. Any answer from 200 to 299 acknowledges the event. Tables are sent at once, each in order.
2. A server that can't be reached, 429 and 5xx concern all tables: they are left alone for a while. Any other answer concerns this
   event, so only its table waits.
3. Redirects are not followed, proxies of the environment are not used, and no more than 64 KiB of an answer is read.
4. An exchange, from the connection to the whole answer, has ``EXCHANGE_SECONDS``, however many bytes come meanwhile: the thread
   that waits for the answers cuts it off then. So a receiver that answers byte by byte holds up nothing.

While a secret is changed, the variable may have two of them with a space between: each event then has both signatures.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import http.client
import logging
import math
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from lakebed.errors import InvalidInput, MissingPrerequisite
from lakebed.listeners.event_types import CONTENT_TYPE, TableEvent, encoded
from lakebed.listeners.targets import KafkaTopic, Webhook, secret_of
from lakebed.version import __version__

Groups: TypeAlias = Mapping[str, Sequence[TableEvent]]
"""Events by table, in order."""
Callback: TypeAlias = Callable[[TableEvent], object]
_logger = logging.getLogger("lakebed.listeners")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an event was not acknowledged. ``is_of_all``: other tables' events would fare the same; ``pause_seconds``: how long the
    receiver asks to be left alone."""

    reason: str
    is_of_all: bool = False
    pause_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Sent:
    """How many of a table's events were acknowledged, the first ones; and why not all, if so."""

    acknowledged: int
    failure: Failure | None = None


class Destination(Protocol):
    """A place that acknowledges events. Only one thread uses it."""

    def send(self, groups: Groups) -> Mapping[str, Sent]:
        """Send events: of each table in order, and none after one that was not acknowledged. Takes bounded time.

        Raises LakebedError if nothing can be sent, for example without a secret.
        """
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class CallbackDestination:
    """Calls a function with each event; one that raises has not acknowledged it."""

    def __init__(self, callback: Callback, is_stopped: Callable[[], bool]) -> None:
        self._callback = callback
        self._is_stopped = is_stopped

    def send(self, groups: Groups) -> Mapping[str, Sent]:
        """Call the function, table by table, until the listening stops."""
        return {table: self._called(events) for table, events in groups.items()}

    def close(self) -> None:
        """Nothing is held."""

    def _called(self, events: Sequence[TableEvent]) -> Sent:
        for number, event in enumerate(events):
            if self._is_stopped():
                return Sent(number, Failure(reason="it is stopped", is_of_all=True))
            try:
                self._callback(event)
            except Exception as error:
                _logger.exception("a listener failed on %s of %s", event.kind, event.table)
                return Sent(number, Failure(reason=f"{type(error).__name__}: {error}"))
        return Sent(len(events))


# -- Delivers events to a topic of Kafka: the key is the table's name, the value is the CloudEvent in JSON -----------------
#
# 1. All events of a table have one key, so they are in one partition, in order. The producer is idempotent: it keeps the order
#    when it sends again, and writes nothing twice by itself.
# 2. No record has a time limit of its own: else one could fail while later ones of its table go on. The whole round has one. When
#    it is over, the producer is given up with all that it still has, and the next round begins with a new one.
# 3. What was acknowledged counts up to the first record that was not.


_SEND_SECONDS_MAX = 30.0
_FIXED: dict[str, Any] = {
    "enable.idempotence": True,
    "enable.gapless.guarantee": True,  # after a record that failed for good, none is written
    "message.timeout.ms": 0,
    "partitioner": "murmur2_random",  # as Java's clients choose partitions
    "message.max.bytes": 8_000_000,
    "linger.ms": 5,
    "log_level": 0,
}


class KafkaDestination:
    """A topic. ``source``: the root that the tables are below."""

    def __init__(self, target: KafkaTopic, source: str) -> None:
        self._target = target
        self._source = source
        self._producer: Any = None

    def send(self, groups: Groups) -> Mapping[str, Sent]:
        """Send the events of each table. Raises MissingPrerequisite, InvalidInput for settings that the client refuses."""
        producer = self._producer = self._producer or _producer(self._target)
        answers: dict[tuple[str, int], str] = {}  # "" for a record that was written
        count = 0
        for table, events in groups.items():
            for number, event in enumerate(events):

                def answered(error: Any, _: Any, place: tuple[str, int] = (table, number)) -> None:
                    answers[place] = str(error.str()) if error is not None else ""

                count += 1
                refused = self._produce(table, encoded(event, self._source), answered)
                if refused:
                    answers[table, number] = refused
                    break
        producer.flush(_SEND_SECONDS_MAX)
        if len(answers) < count or any(answers.values()):
            self.close()
        return {
            table: self._sent([answers.get((table, number)) for number in range(len(events))])
            for table, events in groups.items()
        }

    def close(self) -> None:
        """Give up the producer, and what it has not sent."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge(in_queue=True, in_flight=True, blocking=True)
            producer.flush(1.0)

    def _produce(self, table: str, value: bytes, answered: Any) -> str:
        """Hand a record to the client; why it takes none, "" if it does."""
        from confluent_kafka import KafkaException

        headers = {"content-type": CONTENT_TYPE}
        while True:
            try:
                self._producer.produce(self._target.topic, value, table.encode(), headers=headers, on_delivery=answered)
                self._producer.poll(0)
                return ""
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                return str(error)

    def _sent(self, answers: list[str | None]) -> Sent:
        for number, answer in enumerate(answers):
            if answer != "":
                reason = answer or f"no broker acknowledged it within {_SEND_SECONDS_MAX:.0f} s"
                where = f"{self._target.servers}, topic {self._target.topic}"
                return Sent(number, Failure(reason=f"{where}: {reason}", is_of_all=True))
        return Sent(len(answers))


def _producer(target: KafkaTopic) -> Any:
    try:
        from confluent_kafka import KafkaException, Producer  # only those who use Kafka need its client
    except ModuleNotFoundError as error:
        raise MissingPrerequisite("a listener of Kafka needs confluent-kafka: pip install 'lakebed[kafka]'") from error
    config = {**target.resolved(), **_FIXED, "bootstrap.servers": target.servers}
    try:
        return Producer(config)
    except (KafkaException, ValueError, TypeError) as error:
        text = str(error)
        for value in target.resolved().values():
            text = text.replace(value, "…") if len(value) > 3 else text
        raise InvalidInput(f"kafka: the client refuses the settings of the listener: {text}") from None


EXCHANGE_SECONDS = 10.0
"""No request of a round begins later than this; what is left comes with the next round."""
_LOOK_SECONDS = 0.5  # between two looks for exchanges whose time is over
_AT_ONCE = 8
_ANSWER_BYTES_MAX = 64 << 10
_PAUSE_SECONDS_MAX = 3600.0
_SECRET_PREFIX = "whsec_"


class WebhookDestination:
    """The url of a webhook. ``source``: the root that the tables are below."""

    def __init__(self, webhook: Webhook, source: str, clock: Callable[[], float] = time.time) -> None:
        self._webhook = webhook
        self._source = source
        self._clock = clock
        self._url = urllib.parse.urlsplit(webhook.url)
        self._connections = threading.local()
        self._under_way: dict[int, _Exchange] = {}  # by thread
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="lakebed-webhook")

    def send(self, groups: Groups) -> Mapping[str, Sent]:
        """Send the events of each table. Raises MissingPrerequisite without the secret."""
        keys = keys_of(secret_of(self._webhook.secret)) if self._webhook.secret else []
        ends_at = time.monotonic() + _SEND_SECONDS_MAX
        is_over = threading.Event()
        sending = [self._pool.submit(self._table, events, keys, ends_at, is_over) for events in groups.values()]
        left: Collection[Future[Sent]] = sending
        while left and time.monotonic() < ends_at + EXCHANGE_SECONDS + _LOOK_SECONDS:
            left = wait(left, _LOOK_SECONDS).not_done
            for exchange in list(self._under_way.values()):
                exchange.cut_off_if_late()
        late = Sent(0, Failure(reason=f"{self._webhook.url} can't be reached in time", is_of_all=True))
        return {table: one.result() if one.done() else late for table, one in zip(groups, sending, strict=True)}

    def close(self) -> None:
        """Let go of the threads; their connections end with them."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _table(
        self, events: Sequence[TableEvent], keys: Sequence[bytes], ends_at: float, is_over: threading.Event
    ) -> Sent:
        for number, event in enumerate(events):
            if is_over.is_set() or time.monotonic() >= ends_at:
                return Sent(number)
            failure = self._post(event, keys)
            if failure is not None:
                if failure.is_of_all:
                    is_over.set()
                return Sent(number, failure)
        return Sent(len(events))

    def _post(self, event: TableEvent, keys: Sequence[bytes]) -> Failure | None:
        body, at = encoded(event, self._source), str(int(self._clock()))
        headers = {
            "Content-Type": CONTENT_TYPE,
            "User-Agent": f"lakebed/{__version__}",
            "webhook-id": event.id,
            "webhook-timestamp": at,
        }
        if keys:
            headers["webhook-signature"] = " ".join(signature(key, event.id, at, body) for key in keys)
        exchange = self._under_way[threading.get_ident()] = _Exchange(time.monotonic() + EXCHANGE_SECONDS)
        try:
            return self._answer(*self._asked(body, headers, exchange))
        except Exception as error:  # whatever a receiver makes of the exchange, or the name of its host of a look-up
            self._drop()
            why = f"not within {EXCHANGE_SECONDS:.0f} s" if exchange.is_cut_off else str(error) or type(error).__name__
            return Failure(reason=f"{self._webhook.url} does not answer: {why}", is_of_all=True)
        finally:
            del self._under_way[threading.get_ident()]

    def _asked(self, body: bytes, headers: Mapping[str, str], exchange: _Exchange) -> tuple[int, Mapping[str, str]]:
        """The status and the headers of the answer. A connection that was open for long may be gone: then a new one is tried."""
        target = urllib.parse.urlunsplit(("", "", self._url.path or "/", self._url.query, ""))
        kept = getattr(self._connections, "open", None)
        for connection in (kept, None) if kept is not None else (None,):
            used = connection or self._connected()
            try:
                exchange.use(used)
                used.request("POST", target, body, dict(headers))
                answer = used.getresponse()
                rest = answer.read(_ANSWER_BYTES_MAX + 1)
                if len(rest) > _ANSWER_BYTES_MAX:
                    self._drop()
                return answer.status, {name.lower(): value for name, value in answer.getheaders()}
            except (http.client.RemoteDisconnected, ConnectionError):
                self._drop()
                if connection is None:
                    raise
        raise AssertionError("a new connection answers or raises")

    def _connected(self) -> http.client.HTTPConnection:
        make = _HttpsConnection if self._url.scheme == "https" else http.client.HTTPConnection
        assert self._url.hostname is not None
        self._connections.open = make(self._url.hostname, self._url.port, timeout=EXCHANGE_SECONDS)
        opened: http.client.HTTPConnection = self._connections.open
        return opened

    def _drop(self) -> None:
        connection = getattr(self._connections, "open", None)
        self._connections.open = None
        if connection is not None:
            connection.close()

    def _answer(self, status: int, headers: Mapping[str, str]) -> Failure | None:
        if 200 <= status < 300:
            return None
        what = f"{self._webhook.url} answers {status}"
        if 300 <= status < 400:
            where = headers.get("location", "nowhere")
            return Failure(reason=f"{what} and leads to {where[:200]!r}; redirects are not followed", is_of_all=True)
        return Failure(reason=what, is_of_all=status == 429 or status >= 500, pause_seconds=_asked_pause(headers))


class _HttpsConnection(http.client.HTTPSConnection):
    """A connection whose ``sock`` is there during the handshake of TLS, so that this can be cut off, too."""

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._context.wrap_socket(  # type: ignore[attr-defined]
            self.sock, server_hostname=self.host, do_handshake_on_connect=False
        )
        self.sock.do_handshake()


class _Exchange:
    """A request and its answer, which another thread may cut off."""

    def __init__(self, ends_at: float) -> None:
        self._ends_at = ends_at
        self._connection: http.client.HTTPConnection | None = None
        self.is_cut_off = False

    def use(self, connection: http.client.HTTPConnection) -> None:
        """Connect, if the connection is not open. Raises OSError if the time is over."""
        self._connection = connection
        if connection.sock is None:
            connection.connect()
        if self.is_cut_off:  # while there was no socket yet that could be shut down
            raise TimeoutError("the time is over")

    def cut_off_if_late(self) -> None:
        """End the exchange if its time is over: whoever reads or writes gets an error."""
        if self.is_cut_off or time.monotonic() < self._ends_at:
            return
        self.is_cut_off = True
        if self._connection is not None and self._connection.sock is not None:
            with suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)


def keys_of(secret: str) -> list[bytes]:
    """The keys in a secret: ``whsec_`` and base64, or plain text; several with spaces between. Raises MissingPrerequisite."""
    keys = []
    for one in secret.split():
        if one.startswith(_SECRET_PREFIX):
            try:
                keys.append(base64.b64decode(one.removeprefix(_SECRET_PREFIX), validate=True))
            except binascii.Error:
                raise MissingPrerequisite("a secret that begins with whsec_ must go on in base64") from None
        else:
            keys.append(one.encode())
    if not keys or any(len(key) < 16 for key in keys):
        raise MissingPrerequisite("the secret of a webhook has less than 16 bytes; make one of 24 to 64 random bytes")
    return keys


def signature(key: bytes, event_id: str, timestamp: str, body: bytes) -> str:
    """The signature of one attempt, as Standard Webhooks has it."""
    signed = f"{event_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def _asked_pause(headers: Mapping[str, str]) -> float:
    """The seconds in ``Retry-After``; 0 without one, or for a date."""
    try:
        seconds = float(headers.get("retry-after", "0"))
    except ValueError:
        return 0.0
    return min(_PAUSE_SECONDS_MAX, max(0.0, seconds)) if math.isfinite(seconds) else 0.0
