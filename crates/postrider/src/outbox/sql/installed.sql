-- Our triggers on outbox tables, wherever they are, and those of partitions that were made by them.
select t.tgrelid::bigint as relation, t.tgrelid::regclass::text as relation_name, t.tgname as name, t.tgenabled = 'A' as is_always,
       t.tgparentid <> 0 as is_inherited, p.prosrc as body, p.oid::regprocedure::text as function
from pg_trigger t
join pg_proc p on p.oid = t.tgfoid
-- Those that a table's trigger makes on its partitions are internal on some versions.
where p.pronamespace = 'postrider'::regnamespace
  and t.tgname in ('00_postrider_outbox', 'zz_postrider_claim')
order by 2, 3
