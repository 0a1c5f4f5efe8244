-- One row per slot: index probes, and sizes from the file system.
select s.is_current, s.is_empty, s.bytes, extract(epoch from clock_timestamp() - s.opened_at)::float8 as age, s.held_by
from postrider.slots s
order by s.slot
