-- Bounded: the view counts to 10,000 per lane and says so.
select b.sink, sum(b.events)::bigint as events, bool_and(b.is_exact) as is_exact
from postrider.backlog b
group by b.sink
order by b.sink
