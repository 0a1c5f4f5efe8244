-- Our triggers in this database, wherever they are, and those of partitions that were made by them.
select t.oid::bigint as trigger, t.tgrelid::bigint as relation, t.tgrelid::regclass::text as relation_name, t.tgname as name,
       t.tgenabled as enabled, t.tgtype as kind, t.tgargs, p.prosrc as body, t.tgparentid <> 0 as inherited, p.oid::regprocedure::text as function,
       pg_get_triggerdef(t.oid) as definition, pg_get_functiondef(p.oid) as function_definition
from pg_trigger t
join pg_proc p on p.oid = t.tgfoid
where not t.tgisinternal and p.pronamespace = 'postrider'::regnamespace
  and t.tgname in ('00_postrider', '00_postrider_truncate', '00_postrider_departed')
order by 3, 4
