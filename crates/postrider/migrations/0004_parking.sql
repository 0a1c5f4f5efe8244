-- Trouble: events that a sink refused, sinks that somebody paused, and what keeps a relay from its work. The happy path parks nothing.

alter table postrider.sinks add column if not exists paused_at timestamptz;
-- Events that were delivered and that a failover took back, and when that was seen last.
alter table postrider.sinks
    add column if not exists taken_back bigint not null default 0,
    add column if not exists taken_back_at timestamptz;

-- What a reader says of itself comes with its heartbeat, and is worth as much: with an expired one it is history.
alter table postrider.readers
    add column if not exists heard_at timestamptz not null default clock_timestamp(),
    -- paused: it has noticed that somebody paused the sink, and sends nothing any more. failed: it cannot read, and gets no lanes.
    add column if not exists state text not null default 'running'
        check (state in ('running', 'waiting', 'paused', 'disconnected', 'failed')),
    add column if not exists since timestamptz not null default clock_timestamp(),
    add column if not exists trouble text;

-- The seqs of events on their way to the sink, and of those that it has and that are not settled: at most 5,000 of each. Apart from the
-- heartbeat, whose row is small and stays so: under somebody's old snapshot every version of it is walked over.
create table if not exists postrider.in_flight (
    reader        uuid primary key references postrider.readers on delete cascade,
    sending       bigint[] not null,
    sending_since timestamptz,
    unsettled     bigint[] not null
);

-- An event is copied here whole, so that the cursor may move on and the ring may turn.
create table if not exists postrider.parked (
    sink            integer     not null references postrider.sinks on delete cascade,
    -- For sinks with many destinations of their own; empty for all others.
    destination     text        not null default '',
    id              uuid        not null,
    -- Order of parking, which for one key is the order of delivery. Not seq: a slow transaction's events are delivered late.
    place           bigint      not null generated always as identity,
    lane            smallint    not null,
    seq             bigint      not null,
    source_id       text,
    type            text        not null,
    entity          text,
    key             text,
    tenant          text,
    payload         json        not null,
    headers         json,
    created_at      timestamptz not null,
    -- waiting: tried again at next_attempt_at. behind: waits for an earlier event of its key (ordering: strict).
    -- dead: not tried again until somebody says so; with ordering: strict its key waits behind it.
    state           text        not null check (state in ('waiting', 'behind', 'dead')),
    attempts        integer     not null default 0,
    -- The last refusal, for machines and for people; null while it only waits behind another one.
    kind            text,
    reason          text,
    -- The refusals, oldest first: [{"at":...,"kind":...,"reason":...}], the last twenty.
    history         jsonb       not null default '[]',
    parked_at       timestamptz not null default clock_timestamp(),
    next_attempt_at timestamptz,
    primary key (id, sink, destination)
);

-- What is due, and the order inside a key. No two of these may begin alike: the table is empty most of the time, so the planner knows nothing
-- of it just when it is full, and takes the smaller index for the better one (of 100,000 parked events, fetching 100 took 8.7 s).
create index if not exists parked_due on postrider.parked (sink, lane, next_attempt_at) where state = 'waiting';
create index if not exists parked_key on postrider.parked (sink, destination, key, place);
create unique index if not exists parked_place on postrider.parked (place);
create index if not exists parked_dead on postrider.parked (sink, parked_at) where state = 'dead';

-- What became of events that are not parked any more: the log alone knows only that the cursor went past them. Kept for as long as the
-- log has them, and swept with it.
create table if not exists postrider.unparked (
    sink        integer     not null references postrider.sinks on delete cascade,
    destination text        not null,
    id          uuid        not null,
    fate        text        not null check (fate in ('delivered', 'filtered', 'discarded')),
    ended_at    timestamptz not null default clock_timestamp(),
    primary key (id, sink, destination)
);
create index if not exists unparked_age on postrider.unparked (ended_at);
-- For those who forget a sink.
create index if not exists unparked_sink on postrider.unparked (sink);
