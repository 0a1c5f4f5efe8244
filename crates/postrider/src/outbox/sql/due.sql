-- Rows of an adopted table that every sink has settled. $1 table, $2 how many of each lane, $3 how many parts the lanes are in, $4 which part, $5 the events of those that are passed over
with cursors as materialized (
    select c.lane, c.position, c.late_position, c.snapshot, c.target, c.bound from postrider.cursors c),
lanes as materialized (
    -- A cursor that is missing has settled nothing. Without a sink nobody has anything.
    select c.lane, min(c.position) as position from cursors c where c.lane % $3 = $4 group by c.lane
    having count(*) = (select count(*) from postrider.sinks)),
-- Whether any event was not visible to a cursor that moved past it: only then each row is looked at, which costs a third of all that a row takes
-- here. As for the ring, by probes of the index on (xid, seq); rows of a transaction that is still open are not walked.
snapshots as materialized (
    select c.snapshot::text::pg_snapshot as snapshot, c.bound, max(c.position) as position
    from cursors c group by c.snapshot::text, c.bound),
late as materialized (
    select from snapshots s
    where exists (select from pg_snapshot_xip(s.snapshot) as writer (xid)
                  cross join lateral (select from postrider.events e where e.xid = writer.xid and e.seq + 0 <= s.position limit 1) e
                  where pg_visible_in_snapshot(writer.xid, pg_current_snapshot()))
       or exists (select from postrider.events e where e.xid >= pg_snapshot_xmax(s.snapshot) and e.xid < s.bound and e.seq + 0 <= s.position)),
due as materialized (
    select a.lane, a.seq, a.event, a.source_id, a.born
    from lanes l
    cross join lateral (
        select a.lane, a.seq, a.event, a.source_id, a.born from postrider.all_adopted a
        where a.lane = l.lane and a.seq <= l.position and a.attempts is null and a.outbox = $1 and a.event <> all ($5)
          and not exists (select from postrider.parked p where p.id = a.event offset 0)
        order by a.lane, a.seq limit $2) a
    where (not exists (select from late) or not exists (
        -- Its transaction was open when a cursor moved past it. An event that is gone was settled by everybody.
        select from postrider.events e
        join cursors c on c.lane = e.lane
        where e.lane = a.lane and e.seq = a.seq and e.id = a.event
          and not pg_visible_in_snapshot(e.xid, c.snapshot)
          and not coalesce(e.seq <= c.late_position and pg_visible_in_snapshot(e.xid, c.target), false)))),
gone as (
    delete from postrider.all_adopted a using due d where a.lane = d.lane and a.seq = d.seq and a.event = d.event)
