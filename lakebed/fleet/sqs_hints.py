"""Hints from a queue of AWS SQS, or of a server like it, to which S3 sends its events, by itself or through SNS.

A message goes to one of those who read a queue. So each worker needs a queue of its own, with which a topic of SNS fans out. One
that several workers share loses a hint that reaches another one than the owner of its table. A message is deleted when it was
read; should that fail, it comes again, which does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakebed.errors import InvalidInput, MissingPrerequisite, StoreUnavailable
from lakebed.fleet.hint_reader import Messages

WAIT_SECONDS = 20
"""The longest that SQS lets a request for messages wait: an idle queue costs 4,320 requests a day."""
_MESSAGES_MAX = 10


def sqs_messages(queue: str, account: str | None) -> Messages:
    """The messages of a queue, of another ``account`` if one is given.

    Raises InvalidInput, MissingPrerequisite, StoreUnavailable.
    """
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError, NoRegionError
    except ModuleNotFoundError as error:
        raise MissingPrerequisite(f"hints from SQS need {error.name}: pip install 'lakebed[s3]'") from None
    place = f"the queue {queue!r} of SQS"
    try:
        client: Any = boto3.client("sqs")
        owner: Mapping[str, str] = {} if account is None else {"QueueOwnerAWSAccountId": account}
        url = client.get_queue_url(QueueName=queue, **owner)["QueueUrl"]
        yield None
        while True:
            answer = client.receive_message(
                QueueUrl=url, MaxNumberOfMessages=_MESSAGES_MAX, WaitTimeSeconds=WAIT_SECONDS
            )
            messages = answer.get("Messages", [])
            yield from (message.get("Body", "").encode(errors="replace") for message in messages)
            if messages:
                receipts = [
                    {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
                    for number, message in enumerate(messages)
                ]
                client.delete_message_batch(QueueUrl=url, Entries=receipts)
            yield None
    except NoRegionError:
        raise InvalidInput(f"{place} is in no region: set AWS_REGION, or AWS_DEFAULT_REGION") from None
    except (BotoCoreError, ClientError) as error:
        raise StoreUnavailable(f"{place} can't be read: {error}") from error
