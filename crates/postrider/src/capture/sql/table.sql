-- A table by its name as written. Only catalogs are read: whoever looks after triggers needs no right to the table or its schema. $1 name
select c.oid::bigint as oid, c.relkind, c.relnatts, q.name, '"' || replace(c.relname, '"', '""') || '"' as alias,
       c.relpersistence = 'u' as unlogged, left(regexp_replace(q.name, '[^a-z0-9_]+', '_', 'g'), 22) || '_' || md5(q.name) as recorder,
       coalesce((select string_agg(i.inhrelid::regclass::text, ', ' order by i.inhrelid) from pg_inherits i where i.inhparent = c.oid), '') as children
from parse_ident($1) as written (part)
join pg_namespace n on n.nspname = written.part[1]
join pg_class c on c.relnamespace = n.oid and c.relname = written.part[2]
cross join lateral (select format('%I.%I', n.nspname, c.relname)) q (name)
where array_length(written.part, 1) = 2
