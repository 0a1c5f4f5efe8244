-- Notes partitions that were created as such. $1 oid, $2 name of the table
insert into postrider.partitions (parent, partition)
select $2, format('%I.%I', n.nspname, c.relname)
from pg_partition_tree($1::bigint::oid::regclass) t
join pg_class c on c.oid = t.relid
join pg_namespace n on n.oid = c.relnamespace
join pg_type y on y.oid = c.reltype
join pg_inherits i on i.inhrelid = c.oid
where t.level > 0 and y.xmin::text = i.xmin::text
  -- Until it has its trigger for TRUNCATE it is new.
  and (c.relkind = 'f' or exists (select from pg_trigger g where g.tgrelid = c.oid and g.tgname = '00_postrider_truncate'))
on conflict do nothing
