-- Our triggers in this database, wherever they are, and those of partitions: made by the one of their table, or for it.
select t.oid::bigint as trigger, t.tgrelid::bigint as relation, t.tgrelid::regclass::text as relation_name, t.tgname as name,
       t.tgenabled as enabled, t.tgtype as kind, t.tgargs, p.prosrc as body, p.oid::regprocedure::text as function,
       t.tgparentid <> 0
       or t.tgname = '00_postrider_truncate' and exists (
           select from pg_partition_ancestors(t.tgrelid) a join pg_trigger r on r.tgrelid = a.relid
           where a.relid <> t.tgrelid and r.tgname = t.tgname and r.tgfoid = t.tgfoid) as inherited,
       pg_get_triggerdef(t.oid) as definition, pg_get_functiondef(p.oid) as function_definition
from pg_trigger t
join pg_proc p on p.oid = t.tgfoid
-- Those that a table's trigger makes on its partitions are internal on some versions.
where p.pronamespace = 'postrider'::regnamespace
  and t.tgname in ('00_postrider', '00_postrider_truncate', '00_postrider_departed')
order by 3, 4
