-- One index probe per sink and lane.
select l.sink, greatest(extract(epoch from l.lag), 0)::float8 as age
from postrider.lag l
order by l.sink
