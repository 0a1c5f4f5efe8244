-- How many parked events are meant, the last of them, and the sinks they belong to.
select count(*), coalesce(max(p.place), 0), coalesce(array_agg(distinct p.sink), '{}'), count(*) filter (where p.state = 'behind')
from postrider.parked p
join postrider.sinks s using (sink)
