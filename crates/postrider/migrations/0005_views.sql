-- What an operator may look at with psql alone: relays, backlog, lag, stuck, dead_letters, throughput, delivery, slots.
--
-- Right whether or not a relay runs: they are computed from the cursors and the log. None of them walks the log. Counting stops at 10,000
-- a lane, and everything else is one probe of an index. Nothing may be set for a view, and a planner that is left to itself takes
-- bitmaps or sorts for "all rows of a lane beyond here, at most 10,001", which read all of them first. So counting goes by
-- pages of 500 in the order of the index: for so few rows it is the index by far, whatever it believes about the rest.

-- For stuck and throughput by time. Append-only, so a few kilobytes do.
create index if not exists progress_settled_at on postrider.progress using brin (settled_at);
create index if not exists parked_behind on postrider.parked (sink, lane) where state = 'behind';

-- One row for each relay that is alive and each of its sinks: what it says of itself by its last heartbeat. One that has died says nothing any more.
create or replace view postrider.relays as
    select s.name as sink, r.name as relay, r.state, r.since, r.trouble,
           array(select l.lane from postrider.leases l where l.sink = s.sink and l.owner = r.reader order by l.lane) as lanes,
           coalesce(cardinality(f.sending) + cardinality(f.unsettled), 0) as in_flight, r.started_at, r.heard_at
    from postrider.sinks s
    join postrider.readers r on s.sink = any (r.sinks) and r.expires_at > clock_timestamp()
    left join postrider.in_flight f on f.reader = r.reader;

-- What keeps each sink from taking events, in the words of its relays, and since when.
create or replace view postrider.troubles as
    select r.sink, string_agg(format('%s: %s', r.relay, r.trouble), '; ' order by r.since, r.relay) as trouble, min(r.since) as since
    from postrider.relays r
    where r.trouble is not null
    group by r.sink;

-- Cursors that share a snapshot, so that late rows are looked for once and not once per lane. The arrays are over all lanes, from
-- lane 0; a lane that is not of the group is null.
create or replace view postrider.cursor_groups as
    with newest as materialized (
        select c.*, c.snapshot::text as seen, c.target::text as aim from postrider.cursors c
    )
    select row_number() over () as number, g.sink, g.seen::pg_snapshot as snapshot, g.aim::pg_snapshot as target, g.bound,
           g.lanes, g.highest, g.lowest, a.positions, a.late_positions
    from (
        select c.sink, c.seen, c.aim, c.bound, count(*) as lanes, max(c.position) as highest, min(coalesce(c.late_position, 0)) as lowest
        from newest c
        group by c.sink, c.seen, c.aim, c.bound) g
    cross join lateral (
        select array_agg(c.position order by l.lane) as positions, array_agg(c.late_position order by l.lane) as late_positions
        from generate_series(0, postrider.lanes() - 1) as l (lane)
        left join newest c on c.sink = g.sink and c.lane = l.lane and c.seen = g.seen and c.bound = g.bound and c.aim is not distinct from g.aim) a;

-- Committed events at or below a cursor that it has not seen: their transactions were open when it moved past. As in read.sql, by
-- two index scans. At most 10,000 for each lane of a group and one more.
create or replace view postrider.late as
    select g.sink, g.number as group_number, g.lanes as group_lanes, e.lane, e.seq, e.slot, e.id, e.type, e.key, e.created_at
    from postrider.cursor_groups g
    cross join lateral (
        select * from (
            select e.*
            from pg_snapshot_xip(g.snapshot) as writer (xid)
            cross join lateral (
                select e.lane, e.seq, e.slot, e.id, e.type, e.key, e.created_at
                from postrider.events e
                where e.xid = writer.xid and e.seq <= g.highest
                  -- What was delivered of a large late set is not walked.
                  and e.seq > case when pg_visible_in_snapshot(writer.xid, g.target) then g.lowest else 0 end
                  and e.seq <= g.positions[e.lane + 1]
                  and (e.seq > coalesce(g.late_positions[e.lane + 1], 0) or not pg_visible_in_snapshot(e.xid, g.target))
                order by e.xid, e.seq
                limit 10000 * g.lanes + 1) e
            -- A million rows of a transaction that is still open are not walked either.
            where pg_visible_in_snapshot(writer.xid, pg_current_snapshot())
            union all
            select e.*
            from (
                select e.lane, e.seq, e.slot, e.id, e.type, e.key, e.created_at
                from postrider.events e
                where e.xid >= pg_snapshot_xmax(g.snapshot) and e.xid < g.bound
                  and e.seq + 0 <= g.positions[e.lane + 1]
                  and (e.seq + 0 > coalesce(g.late_positions[e.lane + 1], 0) or not pg_visible_in_snapshot(e.xid, g.target))
                order by e.xid, e.seq
                limit 10000 * g.lanes + 1) e
        ) either
        limit 10000 * g.lanes + 1
    ) e;

-- Where each sink stands in each lane. Where a cursor is missing, its progress was removed by hand: as for the ring, such a lane is owed everything,
-- and nobody knows how much of that was delivered.
create or replace view postrider.places as
    with newest as materialized (
        select c.sink, c.lane, c.reader, c.position from postrider.cursors c
    )
    select c.sink, c.lane, c.reader, c.position, true as is_known from newest c
    union all
    select m.sink, m.lane, null, 0, false
    from (
        -- Asked of the sink as a whole first: comparing lane by lane is slow with a thousand of them, and none is missing but by accident. In arrays,
        -- of which the planner expects little: thousands of expected rows would make it compile, for seconds.
        select array_agg(s.name) as sinks, array_agg(n.lane::smallint) as lanes
        from postrider.sinks s
        cross join generate_series(0, postrider.lanes() - 1) as n (lane)
        where (select count(*) from newest c where c.sink = s.name) < postrider.lanes()
          and not exists (select from newest c where c.sink = s.name and c.lane = n.lane)) missing
    cross join lateral unnest(missing.sinks, missing.lanes) as m (sink, lane);

-- Committed events that a sink has not settled. Exact up to 10,000 a lane; where is_exact is false there are at least so many.
-- When more have come late than 10,000 for each lane, no lane of the sink is exact: the late ones are counted once for all lanes. Nor is a lane
-- whose cursor is missing.
create or replace view postrider.backlog as
    with late as materialized (
        select l.sink, l.lane, l.group_number, l.group_lanes from postrider.late l
    ),
    late_lanes as materialized (
        select l.sink, l.lane, count(*) as events from late l group by l.sink, l.lane
    ),
    cut as materialized (
        select l.sink from late l group by l.sink, l.group_number, l.group_lanes having count(*) > 10000 * l.group_lanes
    )
    select c.sink, c.lane, c.reader, least(fresh.events + coalesce(l.events, 0), 10000) as events,
           c.is_known and fresh.events + coalesce(l.events, 0) <= 10000 and not exists (select from cut where cut.sink = c.sink) as is_exact
    from postrider.places c
    cross join lateral (
        with recursive page (number, last) as (
            select 0, c.position
            union all
            select p.number + 1, e.seq
            from page p
            cross join lateral (
                select e.seq from postrider.events e
                where e.lane = c.lane and e.seq > p.last
                order by e.lane, e.seq offset 499 limit 1) e
            where p.number < 20
        )
        select p.number * 500 + (
                   select count(*) from (
                       select from postrider.events e
                       where e.lane = c.lane and e.seq > p.last
                       order by e.lane, e.seq limit 500) rest) as events
        from page p
        order by p.number desc limit 1) fresh
    left join late_lanes l on l.sink = c.sink and l.lane = c.lane;

-- The oldest committed event that a sink has not settled, and what keeps the sink from taking it.
create or replace view postrider.lag as
    with owed as materialized (
        select c.sink, e.created_at
        from postrider.places c
        cross join lateral (
            select e.created_at from postrider.events e
            where e.lane = c.lane and e.seq > c.position
            order by e.lane, e.seq limit 1) e
        union all
        select l.sink, l.created_at from postrider.late l
    )
    select s.name as sink, min(o.created_at) as oldest, coalesce(clock_timestamp() - min(o.created_at), interval '0') as lag,
           (select t.trouble from postrider.troubles t where t.sink = s.name) as trouble
    from postrider.sinks s
    left join owed o on o.sink = s.name
    group by s.name;

-- Events that have waited in the log for more than five minutes: of each lane those among the first hundred that are next, and those
-- that came late.
create or replace view postrider.stuck as
    select o.sink, o.id, o.type, o.key, clock_timestamp() - o.created_at as waiting
    from (
        select c.sink, e.id, e.type, e.key, e.created_at
        from postrider.places c
        cross join lateral (
            select e.id, e.type, e.key, e.created_at from postrider.events e
            where e.lane = c.lane and e.seq > c.position
            order by e.lane, e.seq limit 100) e
        union all
        select l.sink, l.id, l.type, l.key, l.created_at from postrider.late l) o
    where o.created_at < clock_timestamp() - interval '5 minutes';

-- Events that were refused until no attempt was left, and how many of their key wait behind them (at most 10,000 are counted).
create or replace view postrider.dead_letters as
    select s.name as sink, p.destination, p.id, p.source_id, p.type, p.entity, p.key, p.tenant, p.attempts, p.kind, p.reason,
           p.created_at, p.parked_at, b.behind
    from postrider.parked p
    join postrider.sinks s using (sink)
    cross join lateral (
        select count(*) as behind from (
            select from postrider.parked b
            where b.sink = p.sink and b.destination = p.destination and b.key = p.key and b.place > p.place and b.state = 'behind'
            limit 10000) b) b
    where p.state = 'dead';

-- Events settled in each minute of the last hour. Delivered, parked and filtered ones alike.
create or replace view postrider.throughput as
    select s.name as sink, date_trunc('minute', p.settled_at) as minute, sum(p.events)::bigint as events
    from postrider.progress p
    join postrider.sinks s using (sink)
    where p.settled_at > now() - interval '1 hour'
    group by s.name, date_trunc('minute', p.settled_at)
    having sum(p.events) > 0;

-- One row per sink: who carries its events, and what is in trouble. Counts of parked events stop at 10,000.
create or replace view postrider.delivery as
    select s.name as sink, s.created_at, s.paused_at, alive.readers, alive.standby, held.free_lanes, held.last_settled_at,
           pace.events_last_minute, parked.waiting, parked.behind, parked.dead, t.trouble, t.since as trouble_since,
           s.taken_back, s.taken_back_at
    from postrider.sinks s
    left join postrider.troubles t on t.sink = s.name
    cross join lateral (
        select coalesce(array_agg(r.name order by r.name) filter (where r.holds), '{}') as readers,
               coalesce(array_agg(r.name order by r.name) filter (where not r.holds), '{}') as standby
        from (
            select r.name, exists (select from postrider.leases l where l.sink = s.sink and l.owner = r.reader) as holds
            from postrider.readers r
            where s.sink = any (r.sinks) and r.expires_at > clock_timestamp() and r.state <> 'failed') r) alive
    cross join lateral (
        select count(*) filter (where c.reader is null) as free_lanes, max(c.settled_at) as last_settled_at
        from postrider.cursors c where c.sink = s.name) held
    cross join lateral (
        select coalesce(sum(p.events), 0)::bigint as events_last_minute
        from postrider.progress p where p.sink = s.sink and p.settled_at > now() - interval '1 minute') pace
    cross join lateral (
        select (select count(*) from (select from postrider.parked p where p.sink = s.sink and p.state = 'waiting' limit 10000) p) as waiting,
               (select count(*) from (select from postrider.parked p where p.sink = s.sink and p.state = 'behind' limit 10000) p) as behind,
               (select count(*) from (select from postrider.parked p where p.sink = s.sink and p.state = 'dead' limit 10000) p) as dead) parked;

-- The ring: how large each slot is, and which sinks have not settled all of it. A cursor that is missing is owed everything.
create or replace view postrider.slots as
    with newest as materialized (
        select c.sink, c.lane, c.position from postrider.cursors c
    ),
    late as materialized (
        select distinct l.slot, l.sink from postrider.late l
    ),
    missing as materialized (
        select s.name as sink from postrider.sinks s
        where (select count(*) from newest c where c.sink = s.name) < postrider.lanes()
    )
    -- The sequence is read as a table: a function would ask for a right that whoever looks at the view has not.
    select n.slot::smallint as slot, n.slot = (select s.last_value & 7 from postrider.slot s) as is_current,
           pg_total_relation_size(format('postrider.events_%s', n.slot)::regclass) as bytes,
           not exists (select from postrider.events e where e.slot = n.slot offset 0) as is_empty,
           r.opened_at, nullif(r.closed_at, '-infinity') as closed_at,
           array(
               select c.sink from newest c
               cross join lateral (
                   select from postrider.events e
                   where e.slot = n.slot and e.lane = c.lane and e.seq > c.position
                   order by e.lane, e.seq limit 1) e
               union
               select l.sink from late l where l.slot = n.slot
               union
               select m.sink from missing m
               order by 1) as held_by
    from generate_series(0, 7) as n (slot)
    left join postrider.ring r on r.slot = n.slot;
