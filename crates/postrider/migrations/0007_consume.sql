-- Consumers that read the log directly. What they call is in 0007_batches.sql.
--
-- A consumer is a sink whose lanes are not leased to a relay: whoever fetches a batch holds its lane by a lock of its own transaction, and
-- the cursor moves in that transaction, together with the effect. So both happen or neither does, nobody can be overtaken while it works,
-- and a lane comes back at the moment its transaction ends: by commit, by rollback, because the connection broke, or because the server
-- ended it after the client said nothing for as long as the lease.
--
-- What was read need not be on disk yet. The commit that holds the effect comes later in the WAL than what it was read from, so a crash
-- that takes the event back takes the effect back too.

alter table postrider.sinks add column if not exists is_consumer boolean not null default false;

-- Lanes whose first event failed: they rest until then. Also the event that somebody began with and never said more about: a handler that ends
-- its process leaves no other trace, so what may do so is noted here before it is begun. Only trouble writes here, and who comes new to a lane.
create table if not exists postrider.retries (
    sink       integer     not null references postrider.sinks on delete cascade,
    lane       smallint    not null,
    event      uuid        not null,
    attempts   integer     not null,
    reason     text        not null,
    failed_at  timestamptz not null default clock_timestamp(),
    not_before timestamptz not null,
    -- How often it was begun by itself since it last failed in words; whether somebody who began with it may be dead; and with how many events,
    -- of which one may be the reason. When this one is done with, the next of them are suspected, whichever they are (`event` is all zeros).
    begun      integer     not null default 0,
    is_suspect boolean     not null default false,
    events     integer     not null default 1,
    primary key (sink, lane)
);

-- An xid that is younger than anything that was written when this was called, in a transaction that may have had its own for long. A
-- subtransaction gets one when it writes; of that only the lower half can be seen.
create or replace function postrider.younger_xid() returns xid8
    language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    own  constant bigint := pg_current_xact_id()::text::bigint;
    half bigint;
begin
    begin
        insert into postrider.bell values (true) returning xmin::text::bigint into half;
        raise exception using errcode = 'PR000';
    exception when sqlstate 'PR000' then
        null;
    end;
    half := (own >> 32 << 32) + half;
    return (case when half < own then half + 4294967296 else half end)::text::xid8;
end
$$;

-- A snapshot with the caller's own transaction among those that run. It sees its own rows, but nobody else does yet: they come when it has
-- committed, as late ones. Stable, so that it is the snapshot of the statement that asks.
create or replace function postrider.but_mine(seen pg_snapshot) returns pg_snapshot
    language sql stable set search_path = pg_catalog, pg_temp as $$
    select case when o.own is null or o.own >= pg_snapshot_xmax(seen) then seen
                else format('%s:%s:%s', least(o.own::text::numeric, pg_snapshot_xmin(seen)::text::numeric), pg_snapshot_xmax(seen),
                         (select string_agg(x.xid::text, ',' order by x.xid) from (select o.own as xid union select pg_snapshot_xip(seen)) x))::pg_snapshot end
    from (select pg_current_xact_id_if_assigned() as own) o
$$;

-- Complaints about a consumer's name. Answers its number.
create or replace function postrider.find_consumer(consumer text) returns integer
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    found_sink postrider.sinks;
begin
    if consumer is null or consumer = '' or octet_length(consumer) > 255 then
        raise exception using errcode = case when consumer is null then '22004' when consumer = '' then '22023' else '54000' end,
            message = format('postrider: the consumer must not be %s',
                case when consumer is null then 'null' when consumer = '' then 'empty' else 'longer than 255 bytes' end),
            detail = 'Nothing was read or written.',
            hint = 'Name who reacts to the events, for example ''search''.';
    end if;
    select * into found_sink from postrider.sinks s where s.name = consumer;
    if found_sink.sink is null then
        return null;
    elsif not found_sink.is_consumer then
        raise exception using errcode = '42809',
            message = format('postrider: %L is a sink that relays deliver to, and no consumer', consumer),
            detail = 'Its events would be taken away from the relay. Nothing was read or written.',
            hint = 'Choose another name: every consumer and every sink has all events.';
    end if;
    return found_sink.sink;
end
$$;

-- Makes a consumer known, with a cursor for every lane. Answers whether it is new; only the first call decides where it begins:
-- 'now', 'earliest' (with the oldest event that the log still has), or a time.
create or replace function postrider.subscribe(consumer text, start text default 'now') returns boolean
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    lanes    constant integer := postrider.lanes();
    seen     pg_snapshot;
    place    bigint;
    number   integer;
begin
    if postrider.find_consumer(consumer) is not null then
        return false;
    end if;
    -- Against the ring being turned, and against somebody who does the same: see sink.rs.
    lock table postrider.ring in exclusive mode;
    if postrider.find_consumer(consumer) is not null then
        return false;
    end if;
    select pg_current_snapshot(), coalesce(pg_sequence_last_value('postrider.seq'), 0) into seen, place;
    if start = 'earliest' then
        place := 0;
    elsif start is distinct from 'now' then
        begin
            place := coalesce((select min(e.seq) - 1 from postrider.events e where e.created_at >= start::timestamptz), place);
        exception when data_exception then
            raise exception using errcode = '22007', message = format('postrider: %L is no place to start', start),
                detail = 'Nothing was written.',
                hint = 'Give ''now'', ''earliest'' or a time, for example ''2030-01-31 08:00+00''.';
        end;
    end if;
    insert into postrider.ring (slot) select generate_series(0, 7) on conflict do nothing;
    insert into postrider.identity (system_identifier, timeline)
    select c.system_identifier, ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint from pg_control_system() c
    on conflict do nothing;
    insert into postrider.sinks (name, is_consumer) values (consumer, true) returning sink into number;
    -- An epoch for each lane: the newest row of an epoch is all there is of its cursors, and lanes move one by one.
    insert into postrider.leases (sink, lane, epoch) select number, lane, lane + 1 from generate_series(0, lanes - 1) lane;
    insert into postrider.progress (slot, sink, epoch, number, lanes, positions, late_positions, snapshots, snapshot_of, target_of, bounds)
    select coalesce(pg_sequence_last_value('postrider.progress_slot'), 0) & 3, number, lane + 1, 1, array[lane]::smallint[], array[place],
           array[null]::bigint[], array[seen], array[1], array[null]::integer[], array[bound]
    from postrider.younger_xid() as y (bound) cross join generate_series(0, lanes - 1) lane;
    return true;
end
$$;

-- What a lane has for its consumer, late rows first: the algorithm of read.sql for one lane, and the cursor behind it. No row: nothing.
-- In one statement, because the cursor's snapshot has to be the one that the rows were seen with.
create or replace function postrider.read_lane(
    lane smallint, most integer, place bigint, late_place bigint, old pg_snapshot, target pg_snapshot, bound xid8,
    out records postrider.events[], out new_place bigint, out new_late_place bigint, out new_snapshot pg_snapshot, out new_target pg_snapshot,
    out new_bound xid8, out last_seq bigint
)
    language plpgsql volatile set search_path = pg_catalog, pg_temp
    set enable_seqscan = off set enable_bitmapscan = off set jit = off set max_parallel_workers_per_gather = 0
    set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_variable
declare
    seen     pg_snapshot;
    late     postrider.events[];
    fresh    postrider.events[];
    is_more  boolean;
    is_full  boolean;
begin
    with round as materialized (
        select postrider.but_mine(pg_current_snapshot()) as seen, coalesce(target, postrider.but_mine(pg_current_snapshot())) as upto,
               coalesce(pg_sequence_last_value('postrider.seq'), 0) as last
    ),
    late_rows as materialized (
        select * from (
            select e.* from round r
            cross join lateral pg_snapshot_xip(old) as writer (xid)
            cross join lateral (
                select e as event, e.seq, pg_column_size(e.payload) as bytes from postrider.events e
                where e.xid = writer.xid and e.seq <= place and e.seq > coalesce(late_place, 0) and e.lane = lane
                order by e.xid, e.seq limit most + 1) e
            where pg_visible_in_snapshot(writer.xid, r.upto)
            union all
            select e.* from round r
            cross join lateral (
                select e as event, e.seq, pg_column_size(e.payload) as bytes from postrider.events e
                where e.xid >= pg_snapshot_xmax(old) and e.xid < least(bound, pg_snapshot_xmax(r.upto))
                  and e.seq + 0 <= place and e.seq + 0 > coalesce(late_place, 0) and e.lane + 0 = lane
                  and pg_visible_in_snapshot(e.xid, r.upto)
                order by e.seq limit most + 1) e
        ) either
        order by seq limit most + 1
    ),
    -- No more than a megabyte as stored, which unpacked is 256 at the worst; the first one always.
    late_cut as materialized (
        select l.event, l.seq, row_number() over (order by l.seq) <= most and coalesce(sum(l.bytes) over (
            order by l.seq rows between unbounded preceding and 1 preceding), 0) < 1048576 as fits
        from late_rows l
    ),
    fresh_rows as (
        select e.event, e.seq, coalesce(sum(e.bytes) over (order by e.seq rows between unbounded preceding and 1 preceding), 0) < 1048576 as fits
        from (select e as event, e.seq, pg_column_size(e.payload) as bytes from postrider.events e
              where e.lane = lane and e.seq > place and e.xid is distinct from pg_current_xact_id_if_assigned()
                -- In the middle of a large late set nothing new may overtake it.
                and target is null and (select coalesce(bool_and(l.fits), true) from late_cut l)
              order by e.lane, e.seq limit most - (select count(*) from late_cut l where l.fits)) e
    )
    select r.seen, r.last,
           (select array_agg(l.event order by l.seq) from late_cut l where l.fits), (select not coalesce(bool_and(l.fits), true) from late_cut l),
           (select array_agg(f.event order by f.seq) from fresh_rows f where f.fits),
           (select count(*) >= most - (select count(*) from late_cut l where l.fits) or not coalesce(bool_and(f.fits), true) from fresh_rows f)
    into seen, last_seq, late, is_more, fresh, is_full
    from round r;
    records := coalesce(late, '{}') || coalesce(fresh, '{}');
    new_place := place;
    new_bound := bound;
    if is_more then
        new_snapshot := old;
        new_target := coalesce(target, seen);
        new_late_place := (late[cardinality(late)]).seq;
    elsif target is not null then
        new_snapshot := target;
    else
        new_snapshot := seen;
        new_place := case when not is_full then greatest(last_seq, place) when fresh is null then place else (fresh[cardinality(fresh)]).seq end;
        -- Of the transaction that stores it, which begins to write later than this.
        new_bound := null;
    end if;
end
$$;

-- What operators see of consumers, besides what they see of every sink.
create or replace view postrider.consumers as
    select s.name as consumer, s.created_at, s.paused_at, count(r.lane) as failing_lanes,
           (array_agg(coalesce(nullif(r.reason, ''), 'the process ended') order by r.failed_at desc) filter (where r.lane is not null))[1] as reason
    from postrider.sinks s left join postrider.retries r on r.sink = s.sink and r.attempts + r.begun > 0
    where s.is_consumer
    group by s.sink;

-- The database's side of the wake-up protocol, as functions: a consumer has no right on a sequence. See crates/postrider/src/log/bell.rs.
--
-- The next ticket, good for so many seconds. Producers stop heeding it afterwards, so that a reader that died asleep does not make them notify
-- for ever; a longer sleep of another reader stands, unless a clock jump left it far in the future.
create or replace function postrider.take_ticket(sleep double precision) returns bigint
    language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    select nextval('postrider.armed') from setval('postrider.armed_until', (
        select greatest(ceil(w.wanted), case when w.held < w.wanted + 60 then w.held end)::bigint
        from (select date_part('epoch', clock_timestamp()) + least(take_ticket.sleep, 3600) as wanted,
                     pg_sequence_last_value('postrider.armed_until') as held) w))
$$;

-- Sets `disarmed` to at least this ticket, under a lock that only readers take. Never above what was drawn: anybody can notify anything.
create or replace function postrider.disarm(ticket bigint) returns void
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    armed    bigint;
    disarmed bigint;
begin
    lock table postrider.bell in exclusive mode;
    armed := coalesce(pg_sequence_last_value('postrider.armed'), 0);
    disarmed := coalesce(pg_sequence_last_value('postrider.disarmed'), 0);
    perform setval('postrider.disarmed', greatest(least(disarm.ticket, armed), least(disarmed, armed)));
end
$$;

-- In how many seconds something of this consumer that rests is due again; null if nothing does.
create or replace function postrider.next_batch_at(consumer text) returns double precision
    language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    select date_part('epoch', min(d.at) - clock_timestamp())
    from postrider.find_consumer(next_batch_at.consumer) as own (sink)
    cross join lateral (
        select r.not_before from postrider.retries r where r.sink = own.sink and r.not_before > clock_timestamp()
        union all
        select p.next_attempt_at from postrider.parked p
        where p.sink = own.sink and p.state = 'waiting' and p.next_attempt_at > clock_timestamp()) as d (at)
$$;
