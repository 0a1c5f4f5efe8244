-- Counted to 10,000 of each state, by the index of that state.
select s.name as sink, waiting.events as waiting, behind.events as behind, dead.events as dead
from postrider.sinks s
cross join lateral (
    select count(*) as events
    from (select from postrider.parked p where p.sink = s.sink and p.state = 'waiting' limit 10000) few) waiting
cross join lateral (
    select count(*) as events
    from (select from postrider.parked p where p.sink = s.sink and p.state = 'behind' limit 10000) few) behind
cross join lateral (
    select count(*) as events
    from (select from postrider.parked p where p.sink = s.sink and p.state = 'dead' limit 10000) few) dead
order by s.name
