"""Orders and their events, in one transaction each: producer.py [HOW MANY]. Plain SQL, any driver can do it."""

import json
import os
import sys

import psycopg

many = int(sys.argv[1]) if len(sys.argv) > 1 else 1
with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
    for number in range(many):
        with connection.transaction():
            row = connection.execute(
                "insert into orders (cents) values (%s) returning id", [1000 + number]
            ).fetchone()
            payload = json.dumps({"order": row[0], "cents": 1000 + number})
            connection.execute(
                "select postrider.emit('order.paid', %s, key => %s)", [payload, str(row[0] % 10)]
            )
print(f"{many} orders")
