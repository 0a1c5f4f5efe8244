-- For each cursor: what lies at or below it and will be read from the log (again), and whether some of it is late.
select c.sink, c.lane, count(again.seq) as events, min(again.seq) as first, max(again.seq) as last,
       coalesce(bool_or(again.is_late), false) as is_late
from cursors c
left join lateral (
    select o.seq, true as is_late from (select distinct o.part, o.place, o.lane, o.seq from open o) o
    where o.lane = c.lane and o.seq <= c.position
      and exists (select from open mine where mine.sink = c.sink and mine.lane = c.lane)
    union all
    select m.seq, false from moved m where m.lane = c.lane and m.seq <= c.position
) again on true
group by c.sink, c.lane
order by c.sink, c.lane
