"""What to do with a message from a broker, which may come twice: first_time.py MESSAGE_ID CENTS."""

import os
import sys
import uuid

import psycopg

message_id, cents = sys.argv[1], int(sys.argv[2])
with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
    with connection.transaction():
        is_first = connection.execute("select postrider.first_time('billing', %s::text)", [message_id]).fetchone()[0]
        if is_first:
            event = uuid.uuid5(uuid.NAMESPACE_URL, message_id)
            connection.execute("insert into invoices (event_id, cents) values (%s, %s)", [event, cents])
# Acknowledge the message here, in both cases: the effect is committed, now or before.
print("done" if is_first else "had it before")
