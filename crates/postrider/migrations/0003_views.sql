-- Where everybody stands. What is made of it for operators: 0005_views.sql.

-- The cursor that counts for each sink and lane: the newest progress row of the epoch in the lease. Such a row has all lanes of its
-- epoch, so it is looked for and taken apart once for all of them, not once for each.
create or replace view postrider.cursors as
    select s.name as sink, l.lane, r.name as reader, l.epoch, c.position, c.late_position,
           p.snapshots[c.snapshot_of] as snapshot, p.snapshots[c.target_of] as target, c.bound, p.settled_at
    from (select e.sink, e.epoch from postrider.leases e group by e.sink, e.epoch) e
    cross join lateral (
        select * from postrider.progress p
        where p.sink = e.sink and p.epoch = e.epoch
        order by p.number desc limit 1) p
    cross join lateral unnest(p.lanes, p.positions, p.late_positions, p.snapshot_of, p.target_of, p.bounds)
        as c (lane, position, late_position, snapshot_of, target_of, bound)
    join postrider.leases l on l.sink = e.sink and l.epoch = e.epoch and l.lane = c.lane
    join postrider.sinks s on s.sink = e.sink
    left join postrider.readers r on r.reader = l.owner and r.expires_at > clock_timestamp();
