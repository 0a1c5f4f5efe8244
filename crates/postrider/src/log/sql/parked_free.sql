-- The keys that nothing is parked of any more: asked for the first of each, because a question whether there is one may be answered by
-- walking all that is parked.
--
--   $1 sink, $2 keys
select k.key
from unnest($2::text[]) as k (key)
where (select p.place from postrider.parked p
       where p.sink = $1 and p.destination = '' and p.key = k.key
       order by p.place limit 1) is null
