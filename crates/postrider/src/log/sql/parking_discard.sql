-- $1 sink, $2 destinations, $3 ids
delete from postrider.parked p
using unnest($2::text[], $3::uuid[]) as c (destination, id)
where p.sink = $1 and p.destination = c.destination and p.id = c.id
