-- Our triggers in this database, wherever they are, and those of partitions: made by the one of their table, or for it.
select t.oid::bigint as trigger, t.tgrelid::bigint as relation, t.tgrelid::regclass::text as relation_name, t.tgname as name,
       t.tgenabled as enabled, t.tgtype as kind, p.prosrc as body, p.oid::regprocedure::text as function,
       t.tgparentid <> 0
       or t.tgname = '00_postrider_truncate' and exists (
           select from pg_partition_ancestors(t.tgrelid) a join pg_trigger r on r.tgrelid = a.relid
           where a.relid <> t.tgrelid and r.tgname = t.tgname and r.tgfoid = t.tgfoid) as inherited,
       -- As we make them: on every change of every row, unconditionally, at once; that of a parent before its row goes.
       t.tgqual is null and t.tgattr::text = '' and t.tgconstraint = 0
       and t.tgtype = case t.tgname when '00_postrider' then 29 when '00_postrider_truncate' then 34 else 11 end as is_whole,
       p.prosecdef and p.proowner = c.relowner
       -- That of a parent has others beside it, on which the text of a row depends.
       and case when t.tgname = '00_postrider_departed' then 'search_path=pg_catalog, pg_temp' = any (p.proconfig)
                else p.proconfig = array['search_path=pg_catalog, pg_temp']
                     || case when position('-- Strings are read as the standard has them.' in p.prosrc) > 0
                             then array['standard_conforming_strings=on'] else '{}'::text[] end end as is_safe,
       -- As `postrider.may_capture` asks, which not everybody who looks may call: REASSIGN OWNED gives away no rights.
       has_schema_privilege(p.proowner, 'postrider', 'usage') and exists (
           select from pg_proc k
           where k.pronamespace = 'postrider'::regnamespace and k.proname = 'hold_keeper' and has_function_privilege(p.proowner, k.oid, 'execute')) as may_record,
       pg_get_triggerdef(t.oid) as definition, pg_get_functiondef(p.oid) as function_definition
from pg_trigger t
join pg_class c on c.oid = t.tgrelid
join pg_proc p on p.oid = t.tgfoid
-- Those that a table's trigger makes on its partitions are internal on some versions.
where p.pronamespace = 'postrider_capture'::regnamespace
  -- Whatever they are called now.
  and (t.tgname in ('00_postrider', '00_postrider_truncate', '00_postrider_departed') or p.proname like 'capture\_%' or p.proname like 'departed\_%')
order by 3, 4
