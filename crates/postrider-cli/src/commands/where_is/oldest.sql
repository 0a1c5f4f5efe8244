-- When the oldest event that the log still has was written, by one probe of each lane; null if the ring has never turned, and nothing was ever
-- removed.
select min(e.created_at)
from generate_series(0, postrider.lanes() - 1) as l (lane)
cross join lateral (
    select e.created_at from postrider.events e where e.lane = l.lane::smallint order by e.lane, e.seq limit 1) e
where exists (select from postrider.ring r where r.closed_at > '-infinity')
