-- How often a consumer behind a broker has begun with an event that came again, or that it failed at. A message that ends the process
-- takes everything down with it that had been delivered beside it, and brokers count such deliveries for all of them alike. Counted
-- here, before a try that is made alone, the count is that of the one event. Nothing is written for an event that succeeds at once.
create table if not exists postrider.attempts (
    consumer text        not null,
    event_id text        not null,
    begun    integer     not null default 1,
    reason   text,
    last_at  timestamptz not null default clock_timestamp(),
    primary key (consumer, event_id)
);

-- One more try begins; answers which, and what was said about the one before. Committed by itself, before the try.
create or replace function postrider.begin_attempt(consumer text, event_id text, out begun integer, out reason text) returns record
    language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    insert into postrider.attempts as a (consumer, event_id) values (begin_attempt.consumer, begin_attempt.event_id)
    on conflict on constraint attempts_pkey do update set begun = a.begun + 1, last_at = clock_timestamp()
    returning a.begun, a.reason
$$;

-- What became of the try.
create or replace function postrider.fail_attempt(consumer text, event_id text, reason text) returns void
    language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    update postrider.attempts a set reason = fail_attempt.reason
    where a.consumer = fail_attempt.consumer and a.event_id = fail_attempt.event_id
$$;

-- In the transaction of the effect.
create or replace function postrider.end_attempts(consumer text, event_id text) returns void
    language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    delete from postrider.attempts a where a.consumer = end_attempts.consumer and a.event_id = end_attempts.event_id
$$;

-- Forgets events of a consumer that never came back.
create or replace function postrider.sweep_attempts(consumer text) returns void
    language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    delete from postrider.attempts a where a.consumer = sweep_attempts.consumer and a.last_at < now() - interval '30 days'
$$;

-- Dead letters that a broker refused, the body as it came. For a person: nothing here goes by itself.
create table if not exists postrider.dead_messages (
    number       bigint      generated always as identity primary key,
    consumer     text        not null,
    event_id     text,
    -- Why it was given up, after how many attempts; and why the broker did not keep it.
    reason       text        not null,
    attempts     integer     not null,
    refused      text        not null,
    place        text        not null,
    key          text,
    content_type text,
    headers      json        not null,
    body         bytea       not null,
    kept_at      timestamptz not null default clock_timestamp()
);

create or replace function postrider.keep_message(
    consumer text, event_id text, reason text, attempts integer, refused text, place text, key text, content_type text, headers json, body bytea) returns void
    language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    insert into postrider.dead_messages (consumer, event_id, reason, attempts, refused, place, key, content_type, headers, body)
    values (keep_message.consumer, keep_message.event_id, keep_message.reason, keep_message.attempts, keep_message.refused, keep_message.place,
            keep_message.key, keep_message.content_type, keep_message.headers, keep_message.body)
$$;
