-- Due at once, with all attempts before them; what was is kept. $1 sink, $2 destinations, $3 ids
update postrider.parked p
set state = 'waiting', attempts = 0, next_attempt_at = clock_timestamp()
from unnest($2::text[], $3::uuid[]) as c (destination, id)
where p.sink = $1 and p.destination = c.destination and p.id = c.id
