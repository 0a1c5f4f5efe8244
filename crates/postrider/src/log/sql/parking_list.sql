-- Parked events in the order of parking, with the event that holds each one back. Followed by parking_where.sql and a limit.
select s.name as sink, p.destination, p.id, p.source_id, p.type, p.entity, p.key, p.tenant, p.payload, p.headers, p.created_at, p.lane, p.place,
       p.state, p.attempts, p.kind, p.reason, p.history::text as history, p.parked_at,
       -- As far as whoever reads it can count. Not by `least`, for which null is no answer.
       case when p.next_attempt_at > timestamptz '9999-12-31 00:00:00+00' then timestamptz '9999-12-31 00:00:00+00' else p.next_attempt_at end as next_attempt_at,
       case when p.state = 'behind' then (
           select h.id from postrider.parked h
           where h.sink = p.sink and h.destination = p.destination and h.key = p.key
           order by h.place limit 1) end as held_by
from postrider.parked p
join postrider.sinks s using (sink)
