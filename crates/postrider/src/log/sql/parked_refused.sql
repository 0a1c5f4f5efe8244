-- Parked events that were refused once more.
--
--   $1 sink, $2 reader, $3 id, $4 kind, $5 reason, $6 seconds until the next attempt (null: dead)
update postrider.parked p
set state = case when u.pause is null then 'dead' else 'waiting' end,
    attempts = p.attempts + 1, kind = u.kind, reason = u.reason,
    next_attempt_at = clock_timestamp() + make_interval(secs => coalesce(u.pause, 0)),
    -- The last twenty.
    history = (case when jsonb_array_length(p.history) >= 20 then p.history - 0 else p.history end)
              || jsonb_build_object('at', clock_timestamp(), 'kind', u.kind, 'reason', u.reason)
from unnest($3::uuid[], $4::text[], $5::text[], $6::double precision[]) as u (id, kind, reason, pause),
     postrider.leases l
where p.sink = $1 and p.destination = '' and p.id = u.id and l.sink = p.sink and l.lane = p.lane and l.owner = $2
