"""A poller as teams write it: claim 250 rows with SKIP LOCKED, publish them, wait for the broker's confirmations, mark them.

usage: sink_poller.py SINK BROKER-URL DATABASE-URL. Prints how many rows it has sent when no more are there. The rival of `./dev bench sinks`.
"""

import asyncio
import json
import sys

import psycopg

CLAIM = """
    update outbox set claimed_at = now()
    where id in (select id from outbox where claimed_at is null and processed_at is null
                 order by id limit 250 for update skip locked)
    returning id, event_id, event_type, key, payload, created_at
"""
MARK = "update outbox set processed_at = now() where id = any(%s)"


def message(row):
    _, event_id, event_type, key, payload, created = row
    event = {
        "specversion": "1.0",
        "id": str(event_id),
        "source": "shop",
        "type": event_type,
        "subject": key,
        "time": created.isoformat(),
        "datacontenttype": "application/json",
        "data": json.loads(payload),
    }
    return json.dumps(event).encode()


class Redis:
    """One pipeline for each batch."""

    def __init__(self, url):
        import redis

        self.client = redis.Redis.from_url(url)

    async def publish(self, rows):
        with self.client.pipeline(transaction=False) as pipeline:
            for row in rows:
                pipeline.xadd("events:order", {"id": str(row[1]), "data": message(row)})
            pipeline.execute()


class Nats:
    """All of a batch under way together."""

    def __init__(self, url):
        self.url, self.context = url, None

    async def publish(self, rows):
        if self.context is None:
            import nats

            self.context = (await nats.connect(self.url)).jetstream()
        headers = ({"Nats-Msg-Id": str(row[1])} for row in rows)
        sent = (
            self.context.publish(f"events.{row[2]}", message(row), headers=header) for row, header in zip(rows, headers)
        )
        await asyncio.gather(*sent)


class Rabbitmq:
    """Each confirmed before the next: this client has no other way."""

    def __init__(self, url):
        import pika

        self.channel = pika.BlockingConnection(pika.URLParameters(url)).channel()
        self.channel.confirm_delivery()
        self.pika = pika

    async def publish(self, rows):
        for row in rows:
            properties = self.pika.BasicProperties(
                delivery_mode=2, message_id=str(row[1]), content_type="application/cloudevents+json"
            )
            self.channel.basic_publish("events", row[2], message(row), properties, mandatory=True)


class Kafka:
    """An idempotent producer, flushed after each batch."""

    def __init__(self, url):
        from confluent_kafka import Producer

        brokers, self.topic = url.split("/")
        self.producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True})

    async def publish(self, rows):
        failed = []
        for row in rows:
            self.producer.produce(
                self.topic, message(row), key=row[3], on_delivery=lambda error, _: error and failed.append(error)
            )
        left = self.producer.flush(30)
        if left or failed:
            raise RuntimeError(f"{left} not confirmed, {failed}")


SINKS = {"redis": Redis, "nats": Nats, "rabbitmq": Rabbitmq, "kafka": Kafka}


async def main():
    sink, sent = SINKS[sys.argv[1]](sys.argv[2]), 0
    with psycopg.connect(sys.argv[3], autocommit=True) as database:
        while rows := database.execute(CLAIM).fetchall():
            await sink.publish(sorted(rows))
            database.execute(MARK, [[row[0] for row in rows]])
            sent += len(rows)
    print(sent)


asyncio.run(main())
