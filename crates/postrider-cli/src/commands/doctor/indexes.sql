-- Indexes that must be there and are not, or are not valid: each on the partitioned table, and on every one of its slots.
with wanted (parent, name, columns) as (
    values ('postrider.events', 'events_xid_seq', '(xid, seq)'), ('postrider.events', 'events_lane_seq', '(lane, seq)'),
           ('postrider.events', 'events_id', '(id)'), ('postrider.progress', 'progress_pkey', '(sink, epoch, number, slot)'),
           ('postrider.parked', 'parked_pkey', '(id, sink, destination)'), ('postrider.parked', 'parked_due', '(sink, lane, next_attempt_at)'),
           ('postrider.parked', 'parked_key', '(sink, destination, key, place)'), ('postrider.parked', 'parked_dead', '(sink, parked_at)'),
           ('postrider.parked', 'parked_place', '(place)')
),
tables as (
    select w.parent, w.columns, c.oid, c.oid::regclass::text as name
    from wanted w
    join pg_class c on c.oid = to_regclass(w.parent)
        or c.oid in (select i.inhrelid from pg_inherits i where i.inhparent = to_regclass(w.parent))
)
select distinct t.name || ' ' || t.columns
from tables t
where not exists (
    select from pg_index i
    where i.indrelid = t.oid and i.indisvalid and i.indisready and position(t.columns in pg_get_indexdef(i.indexrelid)) > 0)
order by 1
