-- Copies refused events, and with strict ordering those behind them, into postrider.parked, in the order of the arrays.
--
--   $1 sink, $2 strict, $3 id … $13 created_at: the events; $14 kind, $15 reason (null: not tried, only behind),
--   $16 seconds until the next attempt (null: dead)
insert into postrider.parked
    (sink, id, lane, seq, source_id, type, entity, key, tenant, payload, headers, created_at, state, attempts, kind, reason, history, next_attempt_at)
select $1, e.id, e.lane, e.seq, e.source_id, e.type, e.entity, e.key, e.tenant, e.payload::json, e.headers::json, e.created_at,
       case when s.behind then 'behind' when e.kind is null then 'waiting' when e.pause is null then 'dead' else 'waiting' end,
       case when e.kind is null then 0 else 1 end, e.kind, e.reason,
       case when e.kind is null then '[]' else jsonb_build_array(jsonb_build_object('at', clock_timestamp(), 'kind', e.kind, 'reason', e.reason)) end,
       clock_timestamp() + make_interval(secs => coalesce(e.pause, 0))
from (select *, row_number() over (partition by u.key order by u.place) > 1 as follows
      from unnest($3::uuid[], $4::smallint[], $5::bigint[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[], $11::text[], $12::text[],
                  $13::timestamptz[], $14::text[], $15::text[], $16::double precision[])
           with ordinality as u (id, lane, seq, source_id, type, entity, key, tenant, payload, headers, created_at, kind, reason, pause, place)) e
cross join lateral (
    -- Its first, not whether there is one: that would be answered by walking all that is parked.
    select $2 and e.key is not null and (e.follows or (
        select p.place from postrider.parked p
        where p.sink = $1 and p.destination = '' and p.key = e.key order by p.place limit 1) is not null) as behind) s
order by e.place
on conflict (sink, destination, id) do nothing
