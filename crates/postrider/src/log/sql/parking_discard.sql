-- $1 places
with gone as (
    delete from postrider.parked p where p.place = any ($1) returning p.sink, p.destination, p.id)
insert into postrider.unparked (sink, destination, id, fate)
select g.sink, g.destination, g.id, 'discarded' from gone g
-- Sent anew after a restore, it may have been parked before.
on conflict (id, sink, destination) do update set fate = excluded.fate, ended_at = excluded.ended_at
