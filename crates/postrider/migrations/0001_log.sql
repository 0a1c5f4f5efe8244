-- The log: a ring of eight tables, its sequences, and the state of those who read it.
--
-- Read by: postrider init (which applies it) and postrider sql (which prints it). Idempotent: every statement may run again.
-- Parameters come as settings of the installing transaction, so that this text needs no templating:
--   postrider.install.lanes, postrider.install.max_payload

create schema if not exists postrider;

-- Order of writing. CACHE 1: with a cache a session would keep low numbers for later.
create sequence if not exists postrider.seq as bigint cache 1 no cycle;
-- The slot being written, and the slot of the progress ring. Sequences, because they are read outside MVCC:
-- a transaction that began before the ring turned still sees the newest value.
create sequence if not exists postrider.slot as bigint minvalue 0 start 0 cache 1;
create sequence if not exists postrider.progress_slot as bigint minvalue 0 start 0 cache 1;
-- The wake-up protocol: see crates/postrider/src/log/wake.rs.
create sequence if not exists postrider.armed as bigint minvalue 0 start 1 cache 1;
create sequence if not exists postrider.disarmed as bigint minvalue 0 start 1 cache 1;
create sequence if not exists postrider.armed_until as bigint minvalue 0 start 1 cache 1;

create table if not exists postrider.events (
    -- First on purpose: the xid must be taken before seq, or a reader could pass seq while the xid is still to come
    -- and never find the row. No code names these two columns in an INSERT.
    xid        xid8        not null default pg_current_xact_id(),
    -- The CASE holds that order even where a statement lists the columns the other way round; it costs nothing.
    seq        bigint      not null default case when pg_current_xact_id() is not null then nextval('postrider.seq') end,
    slot       smallint    not null,
    lane       smallint    not null,
    id         uuid        not null,
    source_id  text,
    type       text        not null,
    entity     text,
    key        text,
    tenant     text,
    -- json, not jsonb: the exact bytes that will be published, and half the cost to read.
    payload    json        not null,
    headers    json,
    created_at timestamptz not null default now()
) partition by list (slot);

do $$
begin
    for slot in 0..7 loop
        execute format('create table if not exists postrider.events_%s partition of postrider.events for values in (%s)', slot, slot);
    end loop;
end
$$;

-- Late rows are found by the transaction that wrote them, new rows by lane and order, one event by its id (a UUIDv7, so a
-- BRIN index of some kilobytes does).
-- Even where it exists `create index if not exists` waits for whoever writes, and all who write then wait behind it.
do $$
begin
    if to_regclass('postrider.events_xid_seq') is null then create index events_xid_seq on postrider.events (xid, seq); end if;
    if to_regclass('postrider.events_lane_seq') is null then create index events_lane_seq on postrider.events (lane, seq); end if;
    if to_regclass('postrider.events_id') is null then create index events_id on postrider.events using brin (id); end if;
end
$$;

-- Which cluster the xids and snapshots below belong to. Empty after a schema-only restore: the first reader fills it in.
create table if not exists postrider.identity (
    only_row          boolean primary key default true check (only_row),
    system_identifier bigint  not null,
    timeline          bigint  not null
);

-- When each slot was begun, and when the next one took over: no event in it began later. Whoever turns the ring or creates a
-- sink locks this table first. Empty after a schema-only restore: the first sink fills it in.
create table if not exists postrider.ring (
    slot      smallint primary key check (slot between 0 and 7),
    opened_at timestamptz not null default clock_timestamp(),
    closed_at timestamptz not null default '-infinity'
);

-- Never holds a row: a lock that only readers take, so that two of them cannot move `disarmed` backwards.
create table if not exists postrider.bell (nothing boolean primary key);

create table if not exists postrider.sinks (
    sink       integer generated always as identity primary key,
    name       text not null unique,
    created_at timestamptz not null default clock_timestamp()
);

-- A reader is alive while its heartbeat is younger than its lease; only this server's clock is ever asked.
create table if not exists postrider.readers (
    reader     uuid primary key,
    name       text not null,
    sinks      integer[] not null,
    started_at timestamptz not null default clock_timestamp(),
    expires_at timestamptz not null
);

create table if not exists postrider.leases (
    sink  integer  not null references postrider.sinks on delete cascade,
    lane  smallint not null,
    owner uuid,
    epoch bigint   not null,
    primary key (sink, lane)
);

-- One row per settling: the complete cursors of every lane that a reader holds under one epoch. The newest row by number of the
-- epoch in `leases` counts; a frozen reader's late row has an older epoch and counts for nothing. Appended, never updated:
-- rows updated under a held xmin made a round 19 times slower within half an hour.
create table if not exists postrider.progress (
    slot           smallint      not null,
    sink           integer       not null,
    epoch          bigint        not null,
    number         bigint        not null,
    lanes          smallint[]    not null,
    positions      bigint[]      not null,
    -- Where inside a large late set the lane stands; null elements everywhere else.
    late_positions bigint[]      not null,
    -- A snapshot may be kilobytes: each distinct one is stored once and the lanes point at it (from 1).
    snapshots      pg_snapshot[] not null,
    snapshot_of    integer[]     not null,
    target_of      integer[]     not null,
    -- No row at or below the position can have an xid from here on.
    bounds         xid8[]        not null,
    settled_at     timestamptz   not null default clock_timestamp(),
    -- How many events it moved past: the history of progress is also the history of throughput.
    events         bigint        not null default 0,
    primary key (sink, epoch, number, slot),
    check (cardinality(lanes) > 0
       and cardinality(positions) = cardinality(lanes) and cardinality(late_positions) = cardinality(lanes)
       and cardinality(snapshot_of) = cardinality(lanes) and cardinality(target_of) = cardinality(lanes)
       and cardinality(bounds) = cardinality(lanes)
       and array_position(positions, null) is null and array_position(snapshot_of, null) is null
       and array_position(bounds, null) is null)
) partition by list (slot);

do $$
begin
    for slot in 0..3 loop
        execute format('create table if not exists postrider.progress_%s partition of postrider.progress for values in (%s)', slot, slot);
    end loop;
end
$$;
