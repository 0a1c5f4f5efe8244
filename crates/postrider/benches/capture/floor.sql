-- The least that a row trigger in PL/pgSQL can cost: where an event is ready it inserts that one, in all
-- lanes, else it does nothing.
do $floor$
declare
    ready record;
    body text := '';
begin
    if to_regclass('public.ready') is not null then
        select * into strict ready from public.ready limit 1;
        body := format('insert into postrider.events (slot, id, lane, type, entity, key, tenant, payload, headers)
                        values (0, gen_random_uuid(), new.sequence_id & 15, %L, %L, %L, %L, %L, %L);',
            ready.type, ready.entity, ready.key, ready.tenant, ready.payload, ready.headers);
    end if;
    execute format('create function public.floor() returns trigger language plpgsql as %L', 'begin ' || body || ' return null; end');
end
$floor$;
create trigger floor after update on public.issues for each row execute function public.floor();
