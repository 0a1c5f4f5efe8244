-- The functions of captured tables belong to the owners of the tables: what a column's type or a cast makes them do is done with the
-- rights of who could do it anyway. Into the log they come by functions of the log's owner, and that is all they may.

-- They have a schema of their own, so that whoever installs them can put nothing beside ours. Nothing of ours is looked for in it but the function
-- of a table, by its whole name and the types of its arguments; no search path has it. A table's owner who does not install may not even name what
-- is in it, and so cannot alter his function, which relays call.
do $install$
declare
    ours   constant oid := (select n.nspowner from pg_namespace n where n.nspname = 'postrider');
    theirs constant oid := (select n.nspowner from pg_namespace n where n.nspname = 'postrider_capture');
begin
    if theirs is null then
        execute format('create schema postrider_capture authorization %I', pg_get_userbyid(ours));
    elsif theirs <> ours then
        raise exception using errcode = '42P06',
            message = format('postrider: there is a schema postrider_capture already, and it is not ours: it belongs to %I', pg_get_userbyid(theirs)),
            detail = 'Nothing was changed.',
            hint = 'If it is not needed, let its owner run "drop schema postrider_capture cascade"; if it is, "alter schema postrider_capture rename to ...".';
    end if;
end
$install$;

-- A parent that went in this transaction, for the trigger of a child. With the rights of who calls it: row security asks whether he could have
-- read it, whatever the writing session has set.
create or replace function postrider.departed_row(parent oid, field text, key text) returns json
    language sql stable security invoker set search_path = pg_catalog, pg_temp set row_security = on as $$
    select d.departed from postrider.departed d
    where d.xid = pg_current_xact_id() and d.relation = coalesce(pg_partition_root(departed_row.parent), departed_row.parent)
      and d.field = departed_row.field and d.key = departed_row.key
$$;

-- Lets a role own captured tables, and with `installs` run `postrider apply`, `recapture` and `backfill` for them. Run by the schema's owner.
-- Of the tables row security shows and lets go what is of the role's own: see 0007_capture_owners.sql.
create or replace function postrider.allow_capture(owner name, installs boolean default true) returns void
    language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    routine regprocedure;
    counter regclass;
    -- Neither its place among the others, nor when, where and by whom.
    kept    constant text := (
        select string_agg(quote_ident(a.attname), ', ') from pg_attribute a
        where a.attrelid = 'postrider.capture_failures'::regclass and a.attnum > 0 and not a.attisdropped
          and a.attname not in ('failure', 'failed_at', 'origin', 'kept_by'));
begin
    execute format('grant usage on schema postrider to %I', owner);
    for routine in
        select p.oid::regprocedure from pg_proc p
        where p.pronamespace = 'postrider'::regnamespace
          -- Not one that somebody else has put there.
          and p.proowner = (select c.relowner from pg_class c where c.oid = 'postrider.events'::regclass)
          and (p.proname in ('departed_row', 'keep_departed', 'json_or_text', 'other_fields', 'refuse_event', 'record_failure', 'has_failures', 'waits_behind', 'is_truncated_alone', 'captured_headers',
                             'join_headers', 'checked_context', 'unknown_fields', 'row_json', 'referred_row', 'base_type', 'base64', 'schema_version', 'hand_over', 'may_capture',
                             'owns', 'named', 'remembers', 'here', 'hold_keeper')
               or installs and p.proname in ('note_partitions', 'partitions_of', 'kept_row', 'kept_table', 'keeps_for', 'settle_failures', 'lanes', 'max_payload',
                                             'owns_kept', 'let_record', 'make_recorder'))
    loop
        execute format('grant execute on function %s to %I', routine, owner);
    end loop;
    for counter in
        select c.oid::regclass from pg_class c
        where c.relnamespace = 'postrider'::regnamespace and c.relname in ('capture_failures_failure_seq', 'recaptured')
    loop
        execute format('grant select on sequence %s to %I', counter, owner);
    end loop;
    execute format('grant insert (%s) on postrider.capture_failures to %I', kept, owner);
    execute format('grant select, insert (relation, field, key, departed), update (departed), delete on postrider.departed to %I', owner);
    execute format('grant select on postrider.recorders, postrider.adopted to %I', owner);
    execute format('grant select, insert, update, delete on postrider.misfits to %I', owner);
    execute format('grant select on postrider.all_misfits to %I', owner);
    if installs then
        execute format('grant usage, create on schema postrider_capture to %I', owner);
        execute format('grant select, update (sqlstate, message, parent_row), delete on postrider.capture_failures to %I', owner);
        execute format('grant select, insert, update, delete on postrider.backfills, postrider.partitions, postrider.recorders to %I', owner);
        execute format('grant select on postrider.uncaptured, postrider.all_partitions to %I', owner);
        -- A backfill waits for sinks that are behind: how far, and nothing of what they are or suffer from.
        execute format('grant select (sink, events) on postrider.backlog to %I', owner);
        execute format('grant select (sink, paused_at) on postrider.delivery to %I', owner);
    end if;
end
$$;

-- Whether a role may own captured tables.
create or replace function postrider.may_capture(owner oid) returns boolean
    language sql stable set search_path = pg_catalog, pg_temp as $$
    select has_schema_privilege(owner, 'postrider', 'usage')
       and has_column_privilege(owner, 'postrider.capture_failures', 'relation', 'insert')
       and has_table_privilege(owner, 'postrider.misfits', 'insert')
       and has_function_privilege(owner, 'postrider.hold_keeper(text, uuid)', 'execute')
$$;

-- Gives the function of a captured table to the table's owner. Not where it was made by him, or where he owns the log. Whoever had put one under its
-- name before, or has owned the table, may have let others call it: nobody may, until it is granted anew.
create or replace function postrider.hand_over(function regprocedure, captured regclass) returns void
    language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    owner   constant oid := (select c.relowner from pg_class c where c.oid = captured);
    grantee oid;
begin
    for grantee in
        select distinct a.grantee from pg_proc p cross join aclexplode(p.proacl) a where p.oid = function and a.grantee not in (p.proowner, 0)
    loop
        execute format('revoke all on function %s from %I', function, pg_get_userbyid(grantee));
    end loop;
    -- Also where it is his already: REASSIGN OWNED gives him the table and the function, and none of these rights.
    if not postrider.may_capture(owner) then
        perform postrider.allow_capture(pg_get_userbyid(owner), false);
    end if;
    if owner = (select p.proowner from pg_proc p where p.oid = function) then
        return;
    end if;
    execute format('alter function %s owner to %I', function, pg_get_userbyid(owner));
end
$$;

-- What these do for the owner of a table is the log's own business: they answer yes or no, whatever way names are written in his session.
do $install$
declare
    routine regprocedure;
begin
    for routine in
        select p.oid::regprocedure from pg_proc p
        where p.pronamespace = 'postrider'::regnamespace and p.proname in ('has_failures', 'waits_behind')
    loop
        execute format('alter function %s security definer set quote_all_identifiers = off', routine);
    end loop;
end
$install$;

-- Whoever owned captured tables before has what it takes now, and no more.
do $install$
declare
    owner name;
begin
    for owner in
        select distinct pg_get_userbyid(a.grantee) from pg_proc p cross join aclexplode(p.proacl) a
        where p.pronamespace = 'postrider'::regnamespace and p.proname = 'record_failure' and a.grantee not in (p.proowner, 0)
    loop
        execute format('revoke all on postrider.capture_failures, postrider.backfills, postrider.partitions from %I', owner);
        perform postrider.allow_capture(owner, has_schema_privilege(owner, 'postrider', 'create') or has_schema_privilege(owner, 'postrider_capture', 'create'));
        execute format('revoke create on schema postrider from %I', owner);
    end loop;
end
$install$;

-- What all tables recorded by before each had a function of its own. They go when `postrider apply` has replaced all that call them.
do $install$
declare
    former text;
begin
    foreach former in array array['append_captured(text, text, text, text, json, json)',
        'append_adopted(text, text, text, text, text, text, json, json, timestamptz, boolean, bigint)']
    loop
        if not exists (
            select from pg_proc p where p.pronamespace = 'postrider'::regnamespace and position('postrider.' || split_part(former, '(', 1) || '(' in p.prosrc) > 0)
        then
            execute format('drop function if exists postrider.%s', former);
        end if;
    end loop;
end
$install$;
