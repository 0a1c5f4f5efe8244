-- Partitions that came by ATTACH, or that went, since they were noted. $1 oid, $2 name of the table
with now (name, born) as (
    select format('%I.%I', n.nspname, c.relname), y.xmin::text = i.xmin::text
    from pg_partition_tree($1::bigint::oid::regclass) t
    join pg_class c on c.oid = t.relid
    join pg_namespace n on n.oid = c.relnamespace
    -- Its row type is made with it and stays as it is when it is attached.
    join pg_type y on y.oid = c.reltype
    join pg_inherits i on i.inhrelid = c.oid
    where t.level > 0)
select n.name, true from now n
where not n.born and not exists (select from postrider.partitions p where p.parent = $2 and p.partition = n.name)
union all
select p.partition, false from postrider.partitions p
where p.parent = $2 and not exists (select from now n where n.name = p.partition)
order by 1, 2
