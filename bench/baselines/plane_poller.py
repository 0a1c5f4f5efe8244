"""A poller for an outbox as teams write it: claim 250 rows, publish them, mark them. Here it publishes to nowhere.

Prints how many rows it has sent when no more are there. The rival of `./dev bench adopt`.
"""

import json
import os
import sys

import psycopg

CLAIM = """
    update outbox set claimed_at = now()
    where id in (select id from outbox where processed_at is null and claimed_at is null
                 order by id limit 250 for update skip locked)
    returning id, event_id, event_type, entity_type, entity_id, payload, workspace_id, initiator_type, created_at
"""
MARK = "update outbox set processed_at = now() where id = any(%s)"


def message(row):
    _, event_id, event_type, entity_type, entity_id, payload, workspace, initiator, created = row
    return json.dumps(
        {
            "event_id": str(event_id),
            "event_type": event_type,
            "entity_type": entity_type,
            "entity_id": str(entity_id),
            "payload": payload,
            "workspace_id": str(workspace),
            "initiator_type": initiator,
            "timestamp": created.isoformat(),
        }
    ).encode()


def main():
    sent = 0
    with psycopg.connect(sys.argv[1], autocommit=True) as database, open(os.devnull, "wb") as nowhere:
        while rows := database.execute(CLAIM).fetchall():
            for row in sorted(rows):
                nowhere.write(message(row))
            nowhere.flush()
            database.execute(MARK, [[row[0] for row in rows]])
            sent += len(rows)
    print(sent)


main()
