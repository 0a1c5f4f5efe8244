-- Parked events that are done with. Answers their keys.
--
--   $1 sink, $2 reader, $3 id, $4 what became of each
with gone as (
    delete from postrider.parked p
    using unnest($3::uuid[], $4::text[]) as u (id, fate), postrider.leases l
    where p.sink = $1 and p.destination = '' and p.id = u.id and l.sink = p.sink and l.lane = p.lane and l.owner = $2
    returning p.id, p.key, u.fate),
kept as (
    insert into postrider.unparked (sink, destination, id, fate)
    select $1, '', g.id, g.fate from gone g
    -- Sent anew after a restore, it may have been parked before.
    on conflict (id, sink, destination) do update set fate = excluded.fate, ended_at = excluded.ended_at)
select distinct key from gone where key is not null
