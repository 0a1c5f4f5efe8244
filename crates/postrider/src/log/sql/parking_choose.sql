-- The next few of one sink, under its lock. Followed by parking_where.sql, `and p.sink = $11` and a limit.
select p.destination, p.place, p.state, p.key
from postrider.parked p
join postrider.sinks s using (sink)
