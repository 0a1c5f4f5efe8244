-- Parked events that are done with. Answers their keys.
--
--   $1 sink, $2 reader, $3 id, $4 what became of each
--
-- Found by their ids alone, then by their places: whatever the planner believes of the table, it has no other way.
with found as materialized (
    select p.place, u.fate
    from unnest($3::uuid[], $4::text[]) as u (id, fate)
    cross join lateral (
        select p.place, p.sink, p.destination, p.lane from postrider.parked p where p.id = u.id offset 0) p
    where p.sink = $1 and p.destination = ''
      and exists (select from postrider.leases l where l.sink = $1 and l.lane = p.lane and l.owner = $2)),
gone as (
    delete from postrider.parked p using found f where p.place = f.place
    returning p.id, p.key, f.fate),
kept as (
    insert into postrider.unparked (sink, destination, id, fate)
    select $1, '', g.id, g.fate from gone g
    -- Sent anew after a restore, it may have been parked before.
    on conflict (id, sink, destination) do update set fate = excluded.fate, ended_at = excluded.ended_at)
select distinct key from gone where key is not null
