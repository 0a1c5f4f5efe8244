-- Where everybody stands. What is made of it for operators: 0005_views.sql.

-- The cursor that counts for each sink and lane: the newest progress row of the epoch in the lease. Such a row has all lanes of its
-- epoch, so it is looked for and taken apart once for all of them, not once for each. Who holds a lane is looked up in a document and not
-- by a join: nobody analyzes these small tables, and a planner that knows nothing of them walked all leases once for each of 3,072 cursors.
create or replace view postrider.cursors as
    select e.name as sink, c.lane,
           (select jsonb_object_agg(r.reader, r.name) from postrider.readers r where r.expires_at > clock_timestamp())
               ->> (e.owners ->> c.lane::text) as reader,
           e.epoch, c.position, c.late_position,
           p.snapshots[c.snapshot_of] as snapshot, p.snapshots[c.target_of] as target, c.bound, p.settled_at
    from (
        select s.name, l.sink, l.epoch, jsonb_object_agg(l.lane, l.owner) as owners
        from postrider.leases l
        join postrider.sinks s using (sink)
        group by s.name, l.sink, l.epoch) e
    cross join lateral (
        select * from postrider.progress p
        where p.sink = e.sink and p.epoch = e.epoch
        order by p.number desc limit 1) p
    cross join lateral unnest(p.lanes, p.positions, p.late_positions, p.snapshot_of, p.target_of, p.bounds)
        as c (lane, position, late_position, snapshot_of, target_of, bound)
    -- A lane that nobody holds is there, with null as its owner. Of this operator the planner expects little: thousands of expected rows would
    -- make it compile, for seconds, what then runs for milliseconds.
    where e.owners ? c.lane::text;
