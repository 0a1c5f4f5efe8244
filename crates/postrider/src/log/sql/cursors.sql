-- The cursors that count: for each lane the newest progress row of the epoch in its lease. $1 sink
select l.lane, l.epoch, l.owner, coalesce(r.expires_at > clock_timestamp(), false) as alive,
       c.position, c.late_position, p.snapshots[c.snapshot_of]::text as snapshot, p.snapshots[c.target_of]::text as target,
       c.bound::text as bound
from postrider.leases l
left join postrider.readers r on r.reader = l.owner
left join lateral (
    select * from postrider.progress p
    where p.sink = l.sink and p.epoch = l.epoch
    order by p.number desc limit 1) p on true
left join lateral unnest(p.lanes, p.positions, p.late_positions, p.snapshot_of, p.target_of, p.bounds)
    as c (lane, position, late_position, snapshot_of, target_of, bound) on c.lane = l.lane
where l.sink = $1
order by l.lane
