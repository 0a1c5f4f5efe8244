"""Writes an invoice for every order that is paid, exactly once, without a broker: next_batch.py [--once].

Any number of these may run: they share the work, and the events of one key stay in order.
"""

import os
import sys
import time

import psycopg
from psycopg.rows import dict_row

CONSUMER = "invoices"

once = "--once" in sys.argv
with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, row_factory=dict_row) as connection:
    connection.execute("select postrider.subscribe(%s, 'earliest')", [CONSUMER])
    while True:
        with connection.transaction():
            batch = connection.execute("select * from postrider.next_batch(%s, 100)", [CONSUMER]).fetchall()
            for event in batch:
                connection.execute(
                    "insert into invoices (event_id, cents) values (%s, %s)",
                    [event["id"], event["payload"]["cents"]],
                )
            if batch:
                connection.execute("select postrider.finish_batch(%s, %s)", [CONSUMER, batch[0]["token"]])
        # The invoices and the cursor are committed together, or neither is.
        if not batch:
            if once:
                break
            time.sleep(0.25)
