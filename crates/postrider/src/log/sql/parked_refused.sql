-- Parked events that were refused once more. Found as in parked_delivered.sql.
--
--   $1 sink, $2 reader, $3 id, $4 kind, $5 reason, $6 seconds until the next attempt (null: dead)
with found as materialized (
    select p.place, u.kind, u.reason, u.pause
    from unnest($3::uuid[], $4::text[], $5::text[], $6::double precision[]) as u (id, kind, reason, pause)
    cross join lateral (
        select p.place, p.sink, p.destination, p.lane from postrider.parked p where p.id = u.id offset 0) p
    where p.sink = $1 and p.destination = ''
      and exists (select from postrider.leases l where l.sink = $1 and l.lane = p.lane and l.owner = $2))
update postrider.parked p
set state = case when u.pause is null then 'dead' else 'waiting' end,
    attempts = p.attempts + 1, kind = u.kind, reason = u.reason,
    next_attempt_at = clock_timestamp() + make_interval(secs => coalesce(u.pause, 0)),
    -- The last twenty.
    history = (case when jsonb_array_length(p.history) >= 20 then p.history - 0 else p.history end)
              || jsonb_build_object('at', clock_timestamp(), 'kind', u.kind, 'reason', u.reason)
from found u
where p.place = u.place
