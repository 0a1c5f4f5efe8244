-- Whether a slot still owes something to a cursor: index probes only, no join of the slot with the cursors.
-- The text `events_N` is replaced by the slot's table. Answers the sinks it owes to.
with newest as materialized (
    select * from postrider.cursors
),
-- Anything in a lane beyond its position.
ahead as (
    select c.sink from newest c
    where exists (select from postrider.events_N e where e.lane = c.lane and e.seq > c.position)
),
-- Anything that the snapshot did not see and that may be at or below the position. `+ 0` keeps the index on (lane, seq) out of it: where one
-- transaction has most rows of a slot, the planner takes any of them for the one it looks for, and walks them all.
snapshots as materialized (
    select c.sink, c.snapshot::text::pg_snapshot as snapshot, c.bound, max(c.position) as position, array_agg(c.lane) as lanes
    from newest c group by c.sink, c.snapshot::text, c.bound
),
late as (
    select s.sink from snapshots s
    where exists (select from pg_snapshot_xip(s.snapshot) as writer (xid)
                  cross join lateral (select from postrider.events_N e where e.xid = writer.xid and e.lane + 0 = any (s.lanes) limit 1) e)
       or exists (select from postrider.events_N e where e.xid >= pg_snapshot_xmax(s.snapshot) and e.xid < s.bound
                  and e.seq + 0 <= s.position and e.lane + 0 = any (s.lanes))
),
-- Sinks times lanes: a cursor that is missing cannot say what it is owed, so it is owed everything.
missing as (
    select s.name as sink from postrider.sinks s
    cross join generate_series(0, postrider.lanes() - 1) as l (lane)
    where not exists (select from newest c where c.sink = s.name and c.lane = l.lane)
)
select sink from ahead union select sink from late union select sink from missing order by sink
