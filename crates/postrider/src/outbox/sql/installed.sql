-- Our triggers on outbox tables, wherever they are.
select t.tgrelid::bigint as relation, t.tgrelid::regclass::text as relation_name, t.tgname as name, t.tgenabled = 'A' as is_always, p.prosrc as body,
       p.oid::regprocedure::text as function
from pg_trigger t
join pg_proc p on p.oid = t.tgfoid
where not t.tgisinternal and t.tgparentid = 0 and p.pronamespace = 'postrider'::regnamespace
  and t.tgname in ('00_postrider_outbox', 'zz_postrider_claim')
order by 2, 3
