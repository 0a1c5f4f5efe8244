"""A job queue for Python in three SQL functions. Needs psycopg 3 and DATABASE_URL.

    python3 jobs.py enqueue ada
    python3 jobs.py work
"""

import json
import os
import sys
import time

import psycopg


def enqueue(connection, who):
    # In your own transaction: the job is there if, and only if, that commits.
    with connection.transaction():
        connection.execute("select postrider.enqueue('greet', %s, max_attempts => 5)", [json.dumps({"who": who})])


def greet(connection, payload):
    if payload["who"] == "boom":
        raise ValueError("nobody is called boom")
    connection.execute("insert into greetings values (%s)", [payload["who"]])


def work(connection, once):
    tended = 0.0
    while True:
        # Nobody takes over from others unless asked to; a Rust worker does it for all.
        if time.monotonic() > tended + 5:
            connection.execute("select postrider.reap_jobs(), postrider.tend_jobs()")
            tended = time.monotonic()
        # Committed at once: these jobs are ours for the lease.
        jobs = connection.execute("select claim, id, payload from postrider.claim_jobs('default', 10, lease => '1 minute')").fetchall()
        for claim, job, payload in jobs:
            try:
                # The effect and the end of the job are one transaction. If the lease ran out, finish_jobs raises and nothing has happened.
                with connection.transaction():
                    greet(connection, payload)
                    connection.execute("select postrider.finish_jobs(%s, done => array[%s]::bigint[])", [claim, job])
            except Exception as error:
                finish(connection, claim, json.dumps([{"id": job, "error": str(error)}]), [])
        for claim in {claim for claim, _, _ in jobs}:
            finish(connection, claim, None, None)
        if once and not jobs:
            return
        if not jobs:
            time.sleep(0.5)


def finish(connection, claim, outcomes, done):
    try:
        connection.execute("select postrider.finish_jobs(%s, %s, %s::bigint[])", [claim, outcomes, done])
    except psycopg.errors.ObjectNotInPrerequisiteState as late:
        # Another worker has these jobs by now.
        print(late, file=sys.stderr)


with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
    if sys.argv[1:2] == ["enqueue"]:
        enqueue(connection, sys.argv[2])
    else:
        work(connection, once="--once" in sys.argv)
