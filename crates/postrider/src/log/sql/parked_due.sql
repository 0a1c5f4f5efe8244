-- Parked events of the lanes that a reader holds whose time has come, and with strict ordering those behind them.
--
-- The table is empty most of the time, so the planner knows nothing of it when it is needed. Of each step one index is in question, or it
-- walks all that is parked once for every key.
--
--   $1 sink, $2 reader, $3 strict, $4 how many, $5 lanes
with head as materialized (
    select p.place, p.key
    from postrider.leases l
    cross join lateral (
        select p.place, p.key, p.next_attempt_at from postrider.parked p
        where p.sink = l.sink and p.lane = l.lane and p.state = 'waiting' and p.next_attempt_at <= clock_timestamp()
        order by p.next_attempt_at limit $4) p
    where l.sink = $1 and l.owner = $2 and l.lane = any ($5)
    order by p.next_attempt_at
    limit $4
),
wanted as (
    select place from head
    union
    select b.place from head h
    cross join lateral (
        select b.place from postrider.parked b
        where $3 and b.sink = $1 and b.destination = '' and b.key = h.key and b.place > h.place and b.state not in ('waiting', 'dead')
        order by b.place limit $4) b
)
select p.id, p.lane, p.seq, p.source_id, p.type, p.entity, p.key, p.tenant, p.payload, p.headers, p.created_at, p.attempts
from (select p.*, sum(octet_length(p.payload::text)) over (order by p.place) - octet_length(p.payload::text) as bytes_before
      from wanted w join postrider.parked p on p.place = w.place) p
-- The first one always, however large.
where p.bytes_before < 8388608
order by p.place
limit $4
