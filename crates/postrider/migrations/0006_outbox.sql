-- What adopted outbox tables need beside the log.

-- A row of an adopted table that is in the log, and whose own columns do not say yet that every sink has it. By lane and order, as
-- cursors move. Neither xid nor snapshot is kept: those are the event's, and where the event is gone everybody has it.
create table if not exists postrider.adopted (
    outbox    text     not null,
    lane      smallint not null,
    seq       bigint   not null,
    event     uuid     not null,
    source_id text     not null,
    -- Refusals that the row's own columns tell of; null while nobody refuses it.
    attempts  integer,
    -- With the event: a sequence that was set back must not fail anybody's insert.
    primary key (lane, seq, event)
);
-- Of the moment that the row has in its column for that: one that comes later under the same id is another row. Null where the table
-- has no such column.
alter table postrider.adopted add column if not exists born bigint;
create index if not exists adopted_source_id on postrider.adopted (source_id);
create index if not exists adopted_refused on postrider.adopted (outbox) where attempts is not null;

-- A row of an adopted table as an event, for those who bring many of them at once.
do $$
begin
    if to_regtype('postrider.adoptable') is null then
        create type postrider.adoptable as (
            source_id text, type text, entity text, key text, tenant text, payload json, headers json, created_at timestamptz, born bigint);
    end if;
end
$$;

-- Which relay keeps each adopted table: one at a time, or rows of one key could be moved out of order.
create table if not exists postrider.keepers (
    outbox     text primary key,
    owner      uuid not null,
    name       text not null,
    expires_at timestamptz not null
);

-- What keeps it from keeping the table as it should, in words.
alter table postrider.keepers add column if not exists trouble text;

-- Rows of adopted tables that wait and cannot become events: how many, the first of them and why. Nothing else of a row.
create table if not exists postrider.misfits (
    outbox    text        primary key,
    rows      bigint      not null,
    source_id text        not null,
    reason    text        not null,
    since     timestamptz not null default now(),
    -- The function that looked.
    found_by  text        not null
);

-- The fields of a row that nothing is known of, as `unknown_fields` has them, without those that are null, and others: the headers of
-- a row whose columns have changed under its trigger.
create or replace function postrider.other_fields(unknown text, others json) returns json
    language sql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
    select json_object_agg(f.key, f.value)
    from (select e.key, e.value from json_each(('{' || substr(unknown, 2) || '}')::json) e
          where e.value::text <> 'null'
          union all
          select o.key, o.value from json_each(others) o) f
$$;

-- A payload that is text: JSON if it is some, else a JSON string. So is what is nested too deeply for the server to tell.
create or replace function postrider.json_or_text(document text) returns json
    language plpgsql immutable parallel safe set search_path = pg_catalog, pg_temp as $$
begin
    return document::json;
exception when data_exception or statement_too_complex then
    return to_json(document);
end
$$;
