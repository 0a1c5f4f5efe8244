-- Counted to 10,000 of each state, by the index of that state. There is none for `behind`: what is left of the first 30,000.
select s.name as sink, waiting.events as waiting,
       least(greatest(total.events - waiting.events - dead.events, 0), 10000) as behind, dead.events as dead
from postrider.sinks s
cross join lateral (
    select count(*) as events
    from (select from postrider.parked p where p.sink = s.sink and p.state = 'waiting' limit 10000) few) waiting
cross join lateral (
    select count(*) as events
    from (select from postrider.parked p where p.sink = s.sink and p.state = 'dead' limit 10000) few) dead
cross join lateral (
    select count(*) as events
    from (select from postrider.parked p where p.sink = s.sink limit 30000) few) total
order by s.name
