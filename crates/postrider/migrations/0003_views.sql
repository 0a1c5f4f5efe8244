-- What an operator may look at: postrider.cursors, postrider.backlog, postrider.lag.

-- The cursor that counts for each sink and lane: the newest progress row of the epoch in the lease.
create or replace view postrider.cursors as
    select s.name as sink, l.lane, r.name as reader, l.epoch, c.position, c.late_position,
           p.snapshots[c.snapshot_of] as snapshot, p.snapshots[c.target_of] as target, c.bound, p.settled_at
    from postrider.leases l
    join postrider.sinks s using (sink)
    left join postrider.readers r on r.reader = l.owner and r.expires_at > clock_timestamp()
    cross join lateral (
        select * from postrider.progress p
        where p.sink = l.sink and p.epoch = l.epoch
        order by p.number desc limit 1) p
    cross join lateral unnest(p.lanes, p.positions, p.late_positions, p.snapshot_of, p.target_of, p.bounds)
        as c (lane, position, late_position, snapshot_of, target_of, bound)
    where c.lane = l.lane;

-- Committed events that a sink has not settled. Counts them, so it costs as much as there is to count.
create or replace view postrider.backlog as
    select c.sink, c.lane, c.reader, w.events
    from postrider.cursors c
    cross join lateral (
        select count(*) as events from postrider.events e where e.lane = c.lane and e.seq > c.position) w;

-- The oldest committed event that a sink has not settled, by one index probe per lane.
create or replace view postrider.lag as
    select c.sink, min(w.created_at) as oldest, coalesce(clock_timestamp() - min(w.created_at), interval '0') as lag
    from postrider.cursors c
    left join lateral (
        select e.created_at from postrider.events e where e.lane = c.lane and e.seq > c.position order by e.seq limit 1) w on true
    group by c.sink;
