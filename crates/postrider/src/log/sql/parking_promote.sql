-- The first that is left of each key is held back by nobody any more. $1 sink, $2 destinations, $3 keys
update postrider.parked p
set state = 'waiting', next_attempt_at = clock_timestamp()
from (select distinct c.destination, c.key from unnest($2::text[], $3::text[]) as c (destination, key)) c
cross join lateral (
    select h.place, h.state from postrider.parked h
    where h.sink = $1 and h.destination = c.destination and h.key = c.key
    order by h.place limit 1) first
where p.place = first.place and first.state = 'behind'
