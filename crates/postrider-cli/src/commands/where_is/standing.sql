-- How every sink stands to one event. $1 its lane, $2 its seq, $3 its xid, $4 how many events in flight a reader names
--
-- Settled is what has seq <= position and is visible in the snapshot; in the middle of a large late set also what has seq <= late position and is
-- visible in its target.
with event as materialized (
    select $1::smallint as lane, $2::bigint as seq, $3::text::xid8 as xid
)
select s.name as sink, s.paused_at, r.name as reader, r.since as trouble_since, r.trouble, r.heard_at,
       case when e.seq = any (f.sending) then 'sending' when e.seq = any (f.unsettled) then 'unsettled' end as flight, f.sending_since,
       coalesce(greatest(cardinality(f.sending), cardinality(f.unsettled)) >= $4, false) as names_only_some,
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
