-- Whatever the database or the role has for its sessions.
set transaction read write;
set local statement_timeout = 0;
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
    owner    name;
    strange  text;
begin
    -- A schema without our version that is not empty is somebody else's: what we create "if it does not exist" would be theirs. By the
    -- catalogs, as this user may have no right to it.
    select string_agg(format('%I', o.name), ', ' order by o.name) into strange
    from (select c.relname as name from pg_class c
          where c.relnamespace = to_regnamespace('postrider') and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S')
          order by c.relkind not in ('r', 'p'), c.relname limit 5) o
    where not exists (select from pg_proc p where p.pronamespace = to_regnamespace('postrider') and p.proname = 'schema_version');
    if strange is not null then
        raise exception using errcode = '42P06',
            message = format('postrider: there is a schema postrider already, and it is not ours: it has %s', strange),
            detail = 'Nothing was changed.',
            hint = 'Our schema has this name in every database. If the other one is not needed, let its owner run "drop schema postrider cascade"; if it is, '
                || '"alter schema postrider rename to ...", or install into another database.';
    end if;
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
-- What whoever installs grants to others by default would open tables and functions that are private. It is put aside for all that is made
-- here, and put back by the last step.
do $$
declare
    given record;
    again text[] := '{}';
begin
    for given in
        select case when d.defaclnamespace = 0 then '' else ' in schema postrider' end as place, k.kind, a.privilege_type as privilege,
               pg_get_userbyid(a.grantee) as grantee, case when a.is_grantable then ' with grant option' else '' end as grantable
        from pg_default_acl d
        join (values ('r', 'tables'), ('S', 'sequences'), ('f', 'functions'), ('T', 'types'), ('n', 'schemas')) k (code, kind) on k.code = d.defaclobjtype::text
        cross join aclexplode(d.defaclacl) a
        where d.defaclrole = (select r.oid from pg_roles r where r.rolname = current_user)
          and d.defaclnamespace in (0, to_regnamespace('postrider')) and a.grantee not in (0, d.defaclrole)
    loop
        execute format('alter default privileges%s revoke %s on %s from %I', given.place, given.privilege, given.kind, given.grantee);
        again := again || format('alter default privileges%s grant %s on %s to %I%s', given.place, given.privilege, given.kind, given.grantee, given.grantable);
    end loop;
    perform set_config('postrider.install.defaults', to_json(again)::text, true);
end
$$;
