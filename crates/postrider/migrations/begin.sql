-- A name that is not qualified is the server's: nobody's function of the same name runs with the rights of whoever installs.
set local search_path = pg_catalog, pg_temp;
set local client_min_messages = warning;
-- One installer at a time in this database; the others wait here and then find the work done.
set local lock_timeout = '1min';
do $$ begin perform pg_advisory_xact_lock(7310868751); end $$;
set local lock_timeout = '10s';
-- Before anything in the schema is called.
do $$
declare
    owner name;
begin
    select pg_get_userbyid(n.nspowner) into owner from pg_namespace n
    where n.nspname = 'postrider' and (select r.rolsuper from pg_roles r where r.rolname = current_user)
      and not (select r.rolsuper from pg_roles r where r.oid = n.nspowner);
    if found then
        raise exception using errcode = '42501', message = format('postrider: the schema postrider belongs to %I, and this is a superuser', owner),
            detail = 'What its owner has put there would run with all rights.',
            hint = format('Install as %I.', owner);
    end if;
end
$$;
