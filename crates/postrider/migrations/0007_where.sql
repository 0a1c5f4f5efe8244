-- What became of one event, for `postrider where`. Functions and not views: whoever may look at how things stand may ask for an event whose
-- id they know, and gets no payload and no list of the events there are.

-- By its id, or else the last one that the consumers of an adopted table know by `known_as`: that has no index, and costs one walk
-- through the log.
create or replace function postrider.where_event(event_id uuid, known_as text)
    returns table (id uuid, source_id text, type text, entity text, key text, tenant text, created_at timestamptz, xid text,
                   seq bigint, slot smallint, lane smallint)
    language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select e.id, e.source_id, e.type, e.entity, e.key, e.tenant, e.created_at, e.xid::text, e.seq, e.slot, e.lane
    from postrider.events e where e.id = event_id
    union all
    (select e.id, e.source_id, e.type, e.entity, e.key, e.tenant, e.created_at, e.xid::text, e.seq, e.slot, e.lane
     from postrider.events e
     where e.source_id = known_as and not exists (select from postrider.events e where e.id = event_id)
     order by e.seq desc limit 1)
$$;

-- Where it is parked, and behind which event of its key it waits there.
create or replace function postrider.where_parked(event_id uuid, known_as text)
    returns table (sink text, destination text, id uuid, created_at timestamptz, state text, attempts integer, kind text, reason text,
                   parked_at timestamptz, next_attempt_at timestamptz, held_by uuid)
    language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select s.name, p.destination, p.id, p.created_at, p.state, p.attempts, p.kind, p.reason, p.parked_at,
           -- As far as whoever reads it can count.
           case when p.next_attempt_at > timestamptz '9999-12-31 00:00:00+00' then timestamptz '9999-12-31 00:00:00+00' else p.next_attempt_at end,
           case when p.state = 'behind' then (
               select h.id from postrider.parked h
               where h.sink = p.sink and h.destination = p.destination and h.key = p.key
               order by h.place limit 1) end
    from postrider.parked p
    join postrider.sinks s using (sink)
    where p.id = event_id or p.source_id = known_as
    order by p.place
$$;

-- How it ended where it had been parked, the last end first.
create or replace function postrider.where_unparked(event_id uuid)
    returns table (sink text, fate text, ended_at timestamptz)
    language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select s.name, u.fate, u.ended_at
    from postrider.unparked u
    join postrider.sinks s using (sink)
    where u.id = event_id
    order by u.ended_at desc
$$;

-- When the oldest event that the log still has was written, by one probe of each lane; null if the ring has never turned, and nothing was
-- ever removed.
create or replace function postrider.where_oldest() returns timestamptz
    language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select case when exists (select from postrider.ring r where r.closed_at > '-infinity') then coalesce((
        select min(e.created_at)
        from generate_series(0, postrider.lanes() - 1) as l (lane)
        cross join lateral (
            select e.created_at from postrider.events e where e.lane = l.lane::smallint order by e.lane, e.seq limit 1) e),
        -- Nothing is left of what it had.
        clock_timestamp()) end
$$;

-- How every sink stands to one event. `named` is how many events in flight a reader names at most.
--
-- Settled is what has seq <= position and is visible in the snapshot; in the middle of a large late set also what has seq <= late position and is
-- visible in its target.
create or replace function postrider.where_sinks(event_lane smallint, event_seq bigint, event_xid xid8, named integer)
    returns table (sink text, paused_at timestamptz, reader text, trouble_since timestamptz, trouble text, heard_at timestamptz,
                   flight text, sending_since timestamptz, names_only_some boolean, is_settled boolean, before bigint,
                   settled_at timestamptz, history_begins timestamptz, is_skipped boolean)
    language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    with event as materialized (
        select event_lane as lane, event_seq as seq, event_xid as xid
    )
    select s.name as sink, s.paused_at, r.name as reader, r.since as trouble_since, r.trouble, r.heard_at,
           case when e.seq = any (f.sending) then 'sending' when e.seq = any (f.unsettled) then 'unsettled' end as flight, f.sending_since,
           coalesce(greatest(cardinality(f.sending), cardinality(f.unsettled)) >= named, false) as names_only_some,
           c.position >= e.seq and (pg_visible_in_snapshot(e.xid, c.snapshot)
               or coalesce(e.seq <= c.late_position and pg_visible_in_snapshot(e.xid, c.target), false)) as is_settled,
           -- Late ones go first.
           (select count(*) from (
                select from postrider.late l
                where l.sink = s.name and l.lane = e.lane and (l.seq < e.seq or e.seq > c.position) limit 10001) late)
           + (select count(*) from (
                select from postrider.events b
                where b.lane = e.lane and b.seq > c.position and b.seq < e.seq
                order by b.lane, b.seq limit 10001) fresh) as before,
           h.settled_at, h.history_begins, coalesce(h.is_skipped, false) as is_skipped
    from event e
    cross join postrider.sinks s
    left join postrider.cursors c on c.sink = s.name and c.lane = e.lane
    left join postrider.leases l on l.sink = s.sink and l.lane = e.lane
    -- Only who holds the lane has it in flight, and only as long as it lives.
    left join postrider.readers r on r.reader = l.owner and r.expires_at > clock_timestamp()
    left join postrider.in_flight f on f.reader = r.reader
    left join lateral (
        -- The first settling that had passed it. The very first row of a sink is where it began.
        select min(p.settled_at) filter (where p.is_past) as settled_at, min(p.settled_at) as history_begins,
               bool_or(p.is_past and p.epoch = 1 and p.number = 1) as is_skipped
        from (
            select p.settled_at, p.epoch, p.number,
                   p.positions[n.place] >= e.seq and (pg_visible_in_snapshot(e.xid, p.snapshots[p.snapshot_of[n.place]])
                       or coalesce(e.seq <= p.late_positions[n.place]
                           and pg_visible_in_snapshot(e.xid, p.snapshots[p.target_of[n.place]]), false)) as is_past
            from postrider.progress p
            cross join lateral (select array_position(p.lanes, e.lane) as place) n
            where p.sink = s.sink and n.place is not null) p) h on true
    order by s.name
$$;
