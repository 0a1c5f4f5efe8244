-- $1 sink, $2 destinations, $3 ids
with gone as (
    delete from postrider.parked p
    using unnest($2::text[], $3::uuid[]) as c (destination, id)
    where p.sink = $1 and p.destination = c.destination and p.id = c.id
    returning p.destination, p.id)
insert into postrider.unparked (sink, destination, id, fate)
select $1, g.destination, g.id, 'discarded' from gone g
-- Sent anew after a restore, it may have been parked before.
on conflict (id, sink, destination) do update set fate = excluded.fate, ended_at = excluded.ended_at
