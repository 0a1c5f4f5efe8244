-- What becomes of the rows that a rebase finds. Followed by rebase_update.sql (not when it is only planned) and rebase_again.sql.
--
--   $1 where the sequence stood before it was moved, $2 no row above is looked at
--
-- A row is told from another by its place, not by its seq: after a reset of the sequence two rows may share one.
with cursors as materialized (
    select * from postrider.cursors
),
written as materialized (
    select e.tableoid as part, e.ctid as place, e.lane, e.seq, e.xid, e.id, t.emitted_at,
           row_number() over (partition by e.lane, e.seq order by t.emitted_at, e.id) > 1 as is_copy
    from postrider.events e
    -- created_at is when the transaction began, which may be long before it wrote. The id knows better.
    cross join lateral (select greatest(e.created_at, case when substr(e.id::text, 15, 1) = '7' then
        to_timestamp(('x' || left(replace(e.id::text, '-', ''), 12))::bit(48)::bigint / 1000.0) end) as emitted_at) t
    where e.seq <= $2
),
-- If the sequence stands below a row or a cursor it was set back, and this is the last that is known of the time before.
reset as (
    select max(known.at) as at
    from (select max(w.emitted_at) as at from written w where w.seq > $1
          union all
          select max(c.settled_at) from cursors c where c.position > $1) known
),
-- Rows written after the reset follow everything older, but have a low seq; with one seq for two rows a page could end between them.
-- These get a seq of their own above all others.
moved as materialized (
    select w.*, row_number() over (order by w.seq, w.emitted_at, w.id) as rank
    from written w cross join reset r
    where w.is_copy or w.seq <= $1 and w.emitted_at > r.at
),
-- Rows that a cursor has passed without proof that they were delivered. The minute is for clocks that differ, and for a reader
-- that went on for a while after the reset.
open as materialized (
    select w.part, w.place, w.lane, w.seq, c.sink
    from written w
    join cursors c on c.lane = w.lane and w.seq <= c.position
    where not (w.emitted_at <= c.settled_at - interval '1 minute'
               and (pg_visible_in_snapshot(w.xid, c.snapshot)
                    or coalesce(w.seq <= c.late_position and pg_visible_in_snapshot(w.xid, c.target), false)))
      and not exists (select from moved m where m.part = w.part and m.place = w.place)
)
