"""Keeps the sum of all payments behind RabbitMQ, exactly: rabbitmq_consumer.py EXCHANGE [--once].

The queue is this consumer's own, with a place for dead letters; the publisher does not know of it.
"""

import json
import os
import sys

import pika
import psycopg

CONSUMER, DAY = "python-totals", 24 * 60 * 60 * 1000
exchange, once = sys.argv[1], "--once" in sys.argv
broker = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
channel = broker.channel()
dead = CONSUMER + ".dead"
channel.exchange_declare(dead, "fanout", durable=True)
channel.queue_declare(dead, durable=True, arguments={"x-message-ttl": 7 * DAY})
channel.queue_bind(dead, dead)
channel.exchange_declare(exchange, "fanout", durable=True)
channel.queue_declare(CONSUMER, durable=True, arguments={"x-message-ttl": DAY, "x-dead-letter-exchange": dead})
channel.queue_bind(CONSUMER, exchange)
channel.basic_qos(prefetch_count=100)

with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as database:
    for method, _, body in channel.consume(CONSUMER, inactivity_timeout=1 if once else None):
        if method is None:
            break
        try:
            event = json.loads(body)
            with database.transaction():
                first = database.execute("select postrider.first_time(%s, %s::text)", [CONSUMER, event["id"]])
                if first.fetchone()[0]:
                    database.execute(
                        "update totals set payments = payments + 1, amount = amount + %s", [event["data"]["amount"]]
                    )
        except (ValueError, KeyError, TypeError, psycopg.DataError):
            channel.basic_reject(method.delivery_tag, requeue=False)  # to the dead letters
            continue
        channel.basic_ack(method.delivery_tag)  # after the commit, whether it was new or not
broker.close()
