-- Notes partitions that were created as such. $1 oid, $2 name of the table
insert into postrider.all_partitions (parent, partition, origin)
select $2, n.name, n.origin
from postrider.partitions_of($1::bigint::oid) n
join pg_class c on c.oid = n.relid
where n.born
  -- Until it has its trigger for TRUNCATE it is new.
  and (c.relkind = 'f' or exists (select from pg_trigger g where g.tgrelid = c.oid and g.tgname = '00_postrider_truncate'))
on conflict do nothing
