"""Whether what a pipeline needs answers: known within seconds, however patient the clients are, and since when."""

from __future__ import annotations

import threading
from collections import namedtuple
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from lakebed import waits
from lakebed.errors import InvalidInput, Retry, StoreUnavailable
from lakebed.pipeline import watches
from lakebed.pipeline.watches import (
    ANSWER_SECONDS,
    SAMPLE_SECONDS,
    SAMPLE_SHARE,
    Watch,
    folder_watches,
    require_room,
    seldom,
)
from lakebed.sources.kafka.clients import KeptClients, close_kept_clients
from lakebed.sources.kafka.lag import PREFIX, SILENT_SECONDS, Heartbeats
from lakebed.sources.kafka.settings import KafkaSettings, refused_settings
from lakebed.storage import s3_client as s3_client
from lakebed.storage import s3_objects as s3_objects
from lakebed.storage.counters import RequestCounter
from lakebed.storage.roots import S3Root
from lakebed.waits import BATCH_SECONDS, REQUEST_SECONDS, Stuck, waiting_for
from tests.clock import Clock

# -- a look ----------------------------------------------------------------------------------------------------------


def test_what_does_not_answer_is_down_since_the_first_look_that_failed_until_one_succeeds() -> None:
    answers: list[Exception | None] = [None, Retry("no"), Retry("still no"), None, ValueError("a fault"), None]
    current, clock = iter(answers), Clock()

    def ask() -> None:
        if (error := next(current)) is not None:
            raise error

    watch = Watch("kafka", ask, clock=clock)
    found = []
    for _ in answers:
        clock.now += 1
        watch.look()
        found.append((watch.down.error, watch.down.since_ms) if watch.down else None)
    assert found == [None, ("no", 1_002_000), ("still no", 1_002_000), None, None, None]


def test_connections_that_an_outage_may_have_cost_are_forgotten_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter([None, Retry("no"), Retry("no"), None, None])
    closed: list[str] = []
    kept = KeptClients[str](closed.append)
    for name in ("a", "b"):
        kept.give_back("settings", name)
    made: dict[object, object] = {(None,): (None, None)}
    monkeypatch.setattr(s3_client, "_clients", made)

    def forget() -> None:
        close_kept_clients()
        s3_client.forget_connections()

    def ask() -> None:
        if (error := next(answers)) is not None:
            raise error

    watch, counts = Watch("kafka", ask, forget=forget), []
    for _ in range(5):
        watch.look()
        counts.append(len(closed))
    assert counts == [0, 0, 0, 2, 2] and made == {}
    assert kept.take("settings") is None


def test_a_look_that_hangs_is_a_trouble_before_its_client_gives_up() -> None:
    clock, asked, answers = Clock(), threading.Event(), threading.Event()

    def ask() -> None:
        asked.set()
        answers.wait()

    watch = Watch("store", ask, clock=clock)
    thread = threading.Thread(target=watch.look)
    thread.start()
    asked.wait()
    assert watch.trouble is None
    clock.now += ANSWER_SECONDS + 1
    assert watch.down is not None and watch.down.since_ms == 1_000_000 and "has not answered" in watch.down.error
    answers.set()
    thread.join()
    assert watch.down is None


def test_a_full_disk_and_a_folder_that_is_gone_are_troubles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(watches.shutil, "disk_usage", lambda folder: usage(1 << 30))
    require_room([tmp_path, tmp_path / "not" / "made" / "yet"])
    monkeypatch.setattr(watches.shutil, "disk_usage", lambda folder: usage(1 << 20))
    with pytest.raises(StoreUnavailable, match=f"the disk of {tmp_path} is full"):
        require_room([tmp_path])
    [watch] = folder_watches(str(tmp_path / "in"))
    watch.look()
    assert "can't be read" in str(watch.trouble)
    (tmp_path / "in").mkdir()
    watch.look()
    assert watch.trouble is None


def test_a_store_that_hangs_does_not_make_looks_rare() -> None:
    pauses: list[float] = []
    done = SimpleNamespace(is_set=lambda: len(pauses) == 3, wait=pauses.append)
    clock = Clock(0.0)

    def work() -> None:  # it waits for minutes, and computes for a moment
        clock.now += 0.001

    seldom(work, done, clock)  # type: ignore[arg-type]
    assert pauses == [SAMPLE_SECONDS] * 3
    pauses.clear()
    seldom(lambda: setattr(clock, "now", clock.now + 1.0), done, clock)  # type: ignore[arg-type]
    assert pauses == pytest.approx([1.0 / SAMPLE_SHARE] * 3)


def test_a_look_that_fails_is_not_the_last_one_and_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    pauses: list[float] = []
    done = SimpleNamespace(is_set=lambda: len(pauses) == 3, wait=pauses.append)
    looks: list[int] = []

    def work() -> None:
        looks.append(len(looks))
        raise KeyError("a fault")

    seldom(work, done)  # type: ignore[arg-type]
    assert len(looks) == 3 and [one.levelname for one in caplog.records if "a fault" in one.message] == ["WARNING"]


# -- heartbeats ------------------------------------------------------------------------------------------------------


@dataclass
class Brokers:
    """What brokers say of topics of heartbeats."""

    ends: dict[str, int] = field(default_factory=lambda: {f"{PREFIX}shop": 0})
    answer: bool = True

    def heartbeat_ends(self, prefix: str) -> dict[str, int]:
        if not self.answer:
            raise Retry("no broker")
        return dict(self.ends)


@dataclass
class Connector:
    """A connector that sends heartbeats, and looks at them."""

    brokers: Brokers = field(default_factory=Brokers)
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.heartbeats = Heartbeats(self.brokers, self.clock)

    def is_silent(self, seconds: float, beats: bool) -> bool:
        """Whether it is after so many seconds, of which each has a look, and each a heartbeat if it ``beats``."""
        found = False
        for _ in range(int(seconds)):
            self.clock.now += 1
            self.brokers.ends[f"{PREFIX}shop"] += beats
            try:
                self.heartbeats.look()
                found = False
            except Retry as error:
                assert "the connector of shop" in str(error)
                found = True
        return found


def test_a_connector_that_sent_heartbeats_and_stops_is_silent_until_it_sends_one() -> None:
    one = Connector()
    assert not one.is_silent(10, beats=True)
    assert not one.is_silent(SILENT_SECONDS, beats=False)
    assert one.is_silent(1, beats=False)
    assert not one.is_silent(1, beats=True)


def test_a_connector_that_sends_heartbeats_seldom_or_never_is_not_silent() -> None:
    never, seldom_one = Connector(), Connector()
    assert not never.is_silent(3_600, beats=False)
    for _ in range(6):
        assert not seldom_one.is_silent(59, beats=False)
        assert not seldom_one.is_silent(1, beats=True)
    assert not seldom_one.is_silent(119, beats=False)
    assert seldom_one.is_silent(2, beats=False)


def test_an_outage_of_a_connector_makes_nobody_wait_longer_for_the_next_one_and_another_interval_is_learned() -> None:
    one = Connector()
    one.is_silent(10, beats=True)
    assert one.is_silent(300, beats=False)
    assert not one.is_silent(1, beats=True)
    assert not one.is_silent(SILENT_SECONDS, beats=False)
    assert one.is_silent(1, beats=False)
    assert not one.is_silent(1, beats=True)
    for _ in range(2):
        one.is_silent(59, beats=False)
        one.is_silent(1, beats=True)
    assert not one.is_silent(59, beats=False), "it has a heartbeat a minute now"


def test_while_no_broker_answers_nothing_is_known_of_a_connector() -> None:
    one = Connector()
    one.is_silent(10, beats=True)
    one.brokers.answer = False
    assert not one.is_silent(300, beats=False)
    one.brokers.answer = True
    assert not one.is_silent(SILENT_SECONDS, beats=False)
    assert one.is_silent(1, beats=False)
    one.brokers.answer = False
    assert one.is_silent(60, beats=False), "nothing says that it works again"
    one.brokers.answer = True
    assert not one.is_silent(1, beats=True)


# -- clients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "own", [{}, {"fetch.wait.max.ms": 20_000}, {"reconnect.backoff.ms": 5_000}, {"socket.timeout.ms": 90_000}]
)
def test_a_client_of_kafka_connects_again_soon_and_takes_every_setting_of_a_user(own: dict[str, int]) -> None:
    config = {"bootstrap.servers": "127.0.0.1:1", **own}
    if "fetch.wait.max.ms" in own:
        config["socket.timeout.ms"] = 30_000
    settings = KafkaSettings(config=config, topics=("a",))
    assert refused_settings(settings) == {}
    assert settings.consumer_config().items() >= config.items()
    if not own:
        assert (
            settings.consumer_config()["reconnect.backoff.max.ms"]
            == settings.admin_config()["reconnect.backoff.max.ms"]
            == 2_000
        )


@pytest.mark.parametrize(
    "status, is_transient",
    [
        (400, False),
        (403, False),
        (409, True),
        (429, True),
        (500, True),
        (501, False),
        (503, True),
        (507, True),
        (520, True),
    ],
)
def test_what_a_store_has_no_room_for_is_tried_again(status: int, is_transient: bool) -> None:
    answer = {"Error": {"Code": "Other"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    assert s3_client.is_transient(ClientError(answer, "PutObject")) == is_transient  # type: ignore[arg-type]


def test_a_store_that_refuses_all_writes_is_down_until_one_has_success() -> None:
    clock = Clock()
    failing = s3_client.FailingWrites(clock)
    failing.failed("lake", "507")
    assert failing.error("lake") is None, "the next attempt may have success"
    clock.now += s3_client.WRITES_SECONDS
    failing.failed("lake", "507 again")
    assert (failing.error("lake"), failing.error("other")) == ("507 again", None)
    failing.worked("lake")
    assert failing.error("lake") is None
    failing.failed("lake", "507")
    clock.now += s3_client.WRITES_SECONDS_MAX + 1
    assert failing.error("lake") is None, "nobody writes any more"
    failing.failed("lake", "507")
    assert failing.error("lake") is None, "that is another time"


def test_a_write_that_fails_is_what_the_watch_over_a_store_says(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(s3_objects, "writes", s3_client.FailingWrites(clock))
    monkeypatch.setattr(s3_client, "writes", s3_objects.writes)
    monkeypatch.setattr(s3_client.time, "sleep", lambda seconds: clock.sleep(1))
    full = {"Error": {"Code": "Full"}, "ResponseMetadata": {"HTTPStatusCode": 507}}

    def refuses(**given: object) -> None:
        raise ClientError(full, "PutObject")  # type: ignore[arg-type]

    reads = {"head_object": lambda **given: {}}
    monkeypatch.setattr(s3_client, "s3_client", lambda: SimpleNamespace(**reads, put_object=refuses))
    objects = s3_objects.S3Objects(S3Root("lake", "shop"))
    [watch] = [one for one in watches.store_watches("s3://lake/shop") if one.name == "store"]
    watch.look()
    assert watch.down is None
    with pytest.raises(StoreUnavailable):
        objects.put("orders/a.parquet", b"a")
    watch.look()
    assert watch.down is not None and "put of s3://lake/shop/orders/a.parquet failed" in watch.down.error
    monkeypatch.setattr(s3_client, "s3_client", lambda: SimpleNamespace(**reads, put_object=lambda **given: None))
    objects.put("orders/a.parquet", b"a")
    watch.look()
    assert watch.down is None


@pytest.mark.parametrize(
    "answers, raises",
    [
        ([200], None),
        ([404], None),
        ([503, 404], None),
        ([503, 503], StoreUnavailable),
        (["hangs"], StoreUnavailable),
        ([403], InvalidInput),
    ],
)
def test_a_store_that_answers_is_asked_once_and_one_that_refuses_twice(
    monkeypatch: pytest.MonkeyPatch, answers: list[int | str], raises: type[Exception] | None
) -> None:
    clock, current = Clock(), iter(answers)

    def head(**given: object) -> None:
        if (status := next(current)) == "hangs":
            clock.sleep(s3_objects.HANGS_SECONDS)
            raise ReadTimeoutError(endpoint_url="http://nobody")
        if status != 200:
            answer = {"Error": {"Code": str(status)}, "ResponseMetadata": {"HTTPStatusCode": status}}
            raise ClientError(answer, "HeadObject")  # type: ignore[arg-type]

    monkeypatch.setattr(s3_client, "s3_client", lambda: SimpleNamespace(head_object=head))
    monkeypatch.setattr(s3_client.time, "monotonic", clock)
    with nullcontext() if raises is None else pytest.raises(raises):
        s3_objects.S3Objects(S3Root("lake", "shop")).require_answer()
    assert not list(current)


@pytest.mark.parametrize(
    "answers, is_refused, deleted",
    [([412], False, 0), ([403], False, 0), ([507, 507], True, 0), ([503, 412], False, 0), ([200], False, 1)],
)
def test_a_write_that_changes_nothing_tells_whether_a_store_refuses_writes(
    monkeypatch: pytest.MonkeyPatch, answers: list[int], is_refused: bool, deleted: int
) -> None:
    current, deletes = iter(answers), list[str]()

    def put(**given: object) -> None:
        assert given["IfNoneMatch"] == "*"
        if (status := next(current)) != 200:
            answer = {"Error": {"Code": "Other"}, "ResponseMetadata": {"HTTPStatusCode": status}}
            raise ClientError(answer, "PutObject")  # type: ignore[arg-type]

    client = SimpleNamespace(put_object=put, delete_object=lambda **given: deletes.append(given["Key"]))
    monkeypatch.setattr(s3_objects, "s3_client", lambda: client)
    monkeypatch.setattr(s3_client, "s3_client", lambda: client)
    monkeypatch.setattr(s3_client.time, "sleep", lambda seconds: None)
    refused = s3_objects.S3Objects(S3Root("lake", "shop")).refused_write("runs/a.json")
    assert (refused is not None and "s3://lake/shop/runs/a.json" in refused) == is_refused
    assert len(deletes) == deleted and not list(current)


def test_an_attempt_takes_the_client_of_that_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made, used = iter(range(10)), list[int]()

    def send(client: int) -> tuple[None, int, int]:
        used.append(client)
        if len(used) < 3:
            raise EndpointConnectionError(endpoint_url="http://nobody")
        return None, 0, 0

    monkeypatch.setattr(s3_client, "s3_client", lambda: next(made))
    monkeypatch.setattr(s3_client.time, "sleep", lambda seconds: None)
    s3_client.with_retries(RequestCounter(), "get", S3Root("lake", ""), "a", send)
    assert used == [0, 1, 2]


def test_no_request_of_an_impatient_process_takes_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, began = Clock(), 1_000.0
    for name in ("_patience_seconds", "timeouts", "_clients"):
        monkeypatch.setattr(s3_client, name, getattr(s3_client, name))
    monkeypatch.setattr(s3_client.time, "monotonic", clock)
    monkeypatch.setattr(s3_client.time, "sleep", clock.sleep)
    monkeypatch.setattr(s3_client, "s3_client", lambda: None)

    def hangs(client: object) -> tuple[None, int, int]:
        clock.now += s3_client.timeouts[1]
        raise ReadTimeoutError(endpoint_url="http://nobody")

    s3_client.be_impatient(10.0)
    with pytest.raises(StoreUnavailable):
        s3_client.with_retries(RequestCounter(), "get", S3Root("lake", ""), "a", hangs)
    assert clock.now - began <= 10.0


# -- what waits for what ---------------------------------------------------------------------------------------------


def test_a_request_that_is_tried_again_is_a_wait_until_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def send(client: object) -> tuple[None, int, int]:
        seen.extend(one.what for one in waits.waits())
        raise EndpointConnectionError(endpoint_url="http://nobody")

    monkeypatch.setattr(s3_client, "s3_client", lambda: None)
    monkeypatch.setattr(s3_client.time, "sleep", lambda seconds: None)
    with pytest.raises(StoreUnavailable):
        s3_client.with_retries(RequestCounter(), "put", S3Root("lake", ""), "orders/_delta_log/1.json", send)
    assert seen == ["put of s3://lake/orders/_delta_log/1.json"] * s3_client.ATTEMPTS_MAX
    assert waits.waits() == []


def test_an_outer_wait_goes_on_after_an_inner_one() -> None:
    with waiting_for("a job", is_work=True):
        with waiting_for("a put"):
            assert [one.what for one in waits.waits()] == ["a put"]
        assert [one.what for one in waits.waits()] == ["a job"]


def test_a_request_that_takes_long_is_named_and_a_batch_with_all_that_it_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr(waits.time, "monotonic", clock)
    stuck = Stuck(clock)
    with waiting_for("a job", is_work=True):
        assert stuck.found(1, True) == []
        clock.now += REQUEST_SECONDS + 1
        assert stuck.found(1, True) == [], "a job may take long"
        clock.now = 1_000 + BATCH_SECONDS + 1
        assert stuck.found(1, True) == [
            f"a batch has not ended for {BATCH_SECONDS + 1:.0f} s",
            f"MainThread has waited for {BATCH_SECONDS + 1:.0f} s for a job",
        ]
        assert stuck.found(2, True) == stuck.found(2, False) == [], "it has ended"
    with waiting_for("put of s3://lake/a"):
        clock.now += REQUEST_SECONDS + 1
        assert stuck.found(2, True) == [f"MainThread has waited for {REQUEST_SECONDS + 1:.0f} s for put of s3://lake/a"]
    assert stuck.found(2, True) == []
