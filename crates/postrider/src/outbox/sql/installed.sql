-- Our triggers on outbox tables, wherever they are and whatever they are called now, and those of partitions that were made by them.
select t.tgrelid::bigint as relation, t.tgrelid::regclass::text as relation_name, t.tgname as name, t.tgenabled = 'A' as is_always,
       t.tgparentid <> 0 as is_inherited, p.prosrc as body, p.oid::regprocedure::text as function,
       -- After each row of an INSERT, or before it, whatever the row; with the rights of somebody who may append.
       t.tgtype = case when t.tgname = '00_postrider_outbox' then 5 else 7 end and t.tgqual is null and cardinality(t.tgattr) = 0 and not t.tgdeferrable
       and p.prosecdef and coalesce('search_path=pg_catalog, pg_temp' = any (p.proconfig), false)
       and (p.proowner = c.relowner or p.proowner = (select e.relowner from pg_class e where e.oid = 'postrider.events'::regclass))
       -- But not of somebody who may do anything, unless the table is his.
       and (p.proowner = c.relowner or not o.rolsuper)
       -- And of somebody who is let to record: REASSIGN OWNED gives away no rights.
       and has_schema_privilege(p.proowner, 'postrider', 'usage') and exists (
           select from pg_proc k
           where k.pronamespace = 'postrider'::regnamespace and k.proname = 'hold_keeper' and has_function_privilege(p.proowner, k.oid, 'execute')) as is_whole
from pg_trigger t
join pg_class c on c.oid = t.tgrelid
join pg_proc p on p.oid = t.tgfoid
join pg_roles o on o.oid = p.proowner
-- Those that a table's trigger makes on its partitions are internal on some versions.
where p.pronamespace = 'postrider_capture'::regnamespace
  and (t.tgname in ('00_postrider_outbox', 'zz_postrider_claim') or p.proname ^@ 'append_' or p.proname ^@ 'claim_')
order by 2, 3
