-- Whose is what: the owner of a table records, sees and removes what is of his own tables, and nothing of anybody else's.
--
-- A function with the rights of the log's owner cannot know who has called it. So what is kept of a table stands behind row security, which
-- knows who asks, and into the log each table has a function of its own, with what it may record written into it and its owner alone to
-- call it. Nothing is looked up for an event.

-- Whether a table, or one that it is a partition of, belongs to whoever asks.
create or replace function postrider.owns(relation oid) returns boolean
    language sql stable
    return coalesce((select pg_has_role(c.relowner, 'usage') from pg_class c where c.oid = relation), false)
        or exists (select from pg_partition_ancestors(relation) a join pg_class c on c.oid = a.relid where pg_has_role(c.relowner, 'usage'));

-- The table of a name, by the catalogs: whoever asks need not be let into its schema.
create or replace function postrider.named(relation text) returns oid
    language sql stable
    return (select c.oid from parse_ident(relation, false) p (part)
            join pg_namespace n on n.nspname = p.part[1]
            join pg_class c on c.relnamespace = n.oid and c.relname = p.part[2]);

-- Whether what is kept is of a table of theirs; of one that is gone, whether they have kept it, whoever has a table of its name now.
create or replace function postrider.owns_kept(relation text, relid oid, origin text, kept_by name) returns boolean
    language sql stable
    return case when origin = postrider.here() and exists (select from pg_class c where c.oid = relid) then postrider.owns(relid)
                when postrider.keeps_for(kept_by, postrider.named(relation)) then postrider.owns(postrider.named(relation))
                else exists (select from pg_roles r where r.rolname = kept_by and pg_has_role(r.oid, 'usage')) end;

-- Whether they own a parent, or have the trigger there that remembers its rows.
create or replace function postrider.remembers(relation oid) returns boolean
    language sql stable
    return postrider.owns(relation) or exists (
        select from pg_trigger t join pg_proc p on p.oid = t.tgfoid
        where t.tgname = '00_postrider_departed' and pg_has_role(p.proowner, 'usage')
          and t.tgrelid in (select relation union all select t.relid from pg_partition_tree(relation) t));

-- What a table's owner may record: of a captured table {"entity": ..., "types": [...]}, the types null where each row says its own; of an outbox {"outbox": ...}.
create table if not exists postrider.recorders (
    relation text not null,
    purpose  text not null check (purpose in ('record', 'adopt')),
    rule     json not null,
    primary key (relation, purpose)
);

do $install$
declare
    -- Table, which rows are one's own, and whether all may be seen by who may see any.
    guarded constant text[] := array[
        ['backfills', 'postrider.owns(postrider.named(relation))', ''],
        ['departed', 'xid = pg_current_xact_id() and postrider.remembers(relation)', ''],
        -- Asked once, not for each row: a poll looks at all that are on their way. In a `coalesce`, of which the planner expects nothing.
        ['adopted', 'coalesce(outbox = any (array(select r.relation from postrider.recorders r where r.purpose = ''adopt'' and postrider.owns(postrider.named(r.relation)))), false)', ''],
        ['partitions', 'postrider.owns(postrider.named(parent))', 'seen'],
        ['misfits', 'postrider.owns(postrider.named(outbox))', 'seen'],
        ['recorders', 'postrider.owns(postrider.named(relation))', 'seen']];
    which   text[];
begin
    foreach which slice 1 in array guarded loop
        execute format('alter table postrider.%I enable row level security', which[1]);
        execute format('drop policy if exists own on postrider.%I', which[1]);
        execute format('create policy own on postrider.%I using (%s)', which[1], which[2]);
        if which[3] = 'seen' then
            execute format('drop policy if exists seen on postrider.%I', which[1]);
            execute format('create policy seen on postrider.%I for select using (true)', which[1]);
        end if;
    end loop;
end
$install$;
-- The owner of what hangs on a parent looks for rows of it that have gone: where he could have read any of them, and all of it.
drop policy if exists read on postrider.departed;
create policy read on postrider.departed for select using (
    xid = pg_current_xact_id() and not row_security_active(relation) and not exists (
        select from pg_attribute a
        where a.attrelid = departed.relation and a.attnum > 0 and not a.attisdropped and not has_column_privilege(a.attrelid, a.attnum, 'select')));
-- Of a table that is there: the number of one that somebody else will make could be guessed.
alter policy own on postrider.backfills with check (postrider.owns(postrider.named(relation)) and postrider.owns(relid));
alter table postrider.capture_failures enable row level security;
drop policy if exists keep on postrider.capture_failures;
-- By its name too: that is what counts when the table is gone, or after a restore.
create policy keep on postrider.capture_failures for insert
    with check (postrider.owns(relid) and postrider.owns(postrider.named(relation)));
drop policy if exists see on postrider.capture_failures;
create policy see on postrider.capture_failures for select using (postrider.owns_kept(relation, relid, origin, kept_by));
drop policy if exists amend on postrider.capture_failures;
create policy amend on postrider.capture_failures for update using (postrider.owns_kept(relation, relid, origin, kept_by));
drop policy if exists remove on postrider.capture_failures;
create policy remove on postrider.capture_failures for delete using (postrider.owns_kept(relation, relid, origin, kept_by));

-- A relay asks with row security off, so that nothing of the log can be hidden from it, and the server then refuses what a policy guards. It looks after
-- the tables of all owners, by views, which have the rights of the log's own.
create or replace view postrider.all_departed as select d.xid from postrider.departed d;
create or replace view postrider.all_adopted as select a.* from postrider.adopted a;
create or replace view postrider.all_partitions as select p.* from postrider.partitions p;
create or replace view postrider.all_misfits as select m.* from postrider.misfits m;
-- What keeps relays from keeping adopted tables as they should.
create or replace view postrider.outbox_troubles as
    select k.outbox, k.name as relay, k.trouble from postrider.keepers k where k.trouble is not null;

-- The name of a table's recording function: readable, and by all of the hash nobody else's. As `table.sql` has it.
create or replace function postrider.recorder(relation text, purpose text) returns text
    language sql immutable
    return 'postrider.' || case purpose when 'adopt' then 'adopt_' else 'record_' end || left(regexp_replace(relation, '[^a-z0-9_]+', '_', 'g'), 22) || '_' || md5(relation);

-- One event of a captured row. It is called once for each, so it has no search path of its own, which would cost 2 us: every name is
-- written with its schema instead, operators too. A payload may be as large as a row is.
create or replace function postrider.record_body(rule json) returns text
    language sql immutable set search_path = pg_catalog, pg_temp as $$
    select format($body$
#variable_conflict use_variable
declare
    event_id constant pg_catalog.uuid := postrider.uuid7();
    -- Null after a schema-only restore.
    slot constant pg_catalog.int2 := coalesce(pg_catalog.pg_sequence_last_value('postrider.slot'::pg_catalog.regclass), 0::pg_catalog.int8)
        operator(pg_catalog.&) 7::pg_catalog.int8;
    -- The hash is signed: a mask, never abs().
    lane constant pg_catalog.int2 := case when key is null then pg_catalog.uuid_hash_extended(event_id, 0::pg_catalog.int8)
            else pg_catalog.hashtextextended(key collate pg_catalog."C", 0::pg_catalog.int8) end
        operator(pg_catalog.&) (postrider.lanes() operator(pg_catalog.-) 1)::pg_catalog.int8;
begin
    if type is null or pg_catalog.octet_length(type) operator(pg_catalog.>) 255 or pg_catalog.octet_length(key) operator(pg_catalog.>) 1024
       or pg_catalog.octet_length(tenant) operator(pg_catalog.>) 255 or %1$s then
        if %1$s then
            raise exception using errcode = '42501', message = pg_catalog.format('postrider: the table makes no events of the type %%L', type),
                detail = 'It is not among those that were declared when its trigger was installed.', hint = 'Run: postrider apply.';
        end if;
        perform postrider.refuse_event(type, 0::pg_catalog.int8, key, tenant, null::pg_catalog.text, null::pg_catalog.text, ''::pg_catalog.text);
    end if;
    insert into postrider.events (slot, lane, id, type, entity, key, tenant, payload, headers)
    values (slot, lane, event_id, type, %2$L, key, tenant, payload, headers);
    -- After the row has its xid: see emit.
    if coalesce(pg_catalog.pg_sequence_last_value('postrider.armed'::pg_catalog.regclass), 0::pg_catalog.int8)
       operator(pg_catalog.>) coalesce(pg_catalog.pg_sequence_last_value('postrider.disarmed'::pg_catalog.regclass), 0::pg_catalog.int8) then
        perform postrider.ring_bell();
    end if;
    return event_id;
end
$body$,
        case when json_typeof(rule -> 'types') = 'array'
             then format('type operator(pg_catalog.<>) all (%L::pg_catalog.text[])', array(select json_array_elements_text(rule -> 'types')))
             else 'false' end,
        rule ->> 'entity')
$$;

-- One event of a row of an adopted table, whose parts were made with the rights of the table's owner. Noted, where the row's own columns
-- are to tell what becomes of it: as one of that table, whose rows are then marked. Of many rows by one statement, as a mover brings them:
-- with its claim a row took 50 us of the server's time on 15 when they came one by one, and takes 36 us so.
drop function if exists postrider.adopt_body(text);
create or replace function postrider.adopt_body(outbox text, of_many boolean) returns text
    language sql immutable set search_path = pg_catalog, pg_temp as $$
    select format(case when of_many then $many$
#variable_conflict use_variable
declare
    slot constant smallint := coalesce(pg_sequence_last_value('postrider.slot'), 0) & 7;
    appended bigint;
begin
    with named as materialized (
        select postrider.uuid7() as id, r.*
        from unnest(rows) with ordinality r (source_id, type, entity, key, tenant, payload, headers, created_at, born, place)),
    appended as (
        insert into postrider.events (slot, lane, id, source_id, type, entity, key, tenant, payload, headers, created_at)
        select slot,
               case when n.key is null then uuid_hash_extended(n.id, 0) else hashtextextended(n.key collate "C", 0) end & (postrider.lanes() - 1),
               n.id, n.source_id,
               case when n.type is null or n.type = '' or octet_length(n.type) > 255 or octet_length(n.key) > 1024
                         or octet_length(n.tenant) > 255 or octet_length(n.entity) > 255
                    then postrider.refuse_event(n.type, 0::bigint, n.key, n.tenant, n.entity, null::text, ''::text)::text
                    else n.type end,
               n.entity, n.key, n.tenant, n.payload, n.headers, n.created_at
        from (select n.* from named n order by n.place offset 0) n
        returning events.lane, events.seq, events.id, events.source_id),
    notes as (
        insert into postrider.adopted (outbox, lane, seq, event, source_id, born)
        select %L, a.lane, a.seq, a.id, a.source_id, n.born from appended a join named n on n.id = a.id where noted)
    select count(*) into appended from appended;
    perform postrider.ring_bell();
    return appended;
end
$many$ else $one$
#variable_conflict use_variable
declare
    event_id constant uuid := postrider.uuid7();
    slot constant smallint := coalesce(pg_sequence_last_value('postrider.slot'), 0) & 7;
    lane constant smallint := case when key is null then uuid_hash_extended(event_id, 0) else hashtextextended(key collate "C", 0) end & (postrider.lanes() - 1);
    seq bigint;
begin
    if type is null or type = '' or octet_length(type) > 255 or octet_length(key) > 1024 or octet_length(tenant) > 255 or octet_length(entity) > 255 then
        perform postrider.refuse_event(type, 0::bigint, key, tenant, entity, null::text, ''::text);
    end if;
    insert into postrider.events (slot, lane, id, source_id, type, entity, key, tenant, payload, headers, created_at)
    values (slot, lane, event_id, source_id, type, entity, key, tenant, payload, headers, created_at)
    returning events.seq into seq;
    if noted then
        insert into postrider.adopted (outbox, lane, seq, event, source_id, born) values (%L, lane, seq, event_id, source_id, born);
    end if;
    -- After the row has its xid: see emit.
    if coalesce(pg_sequence_last_value('postrider.armed'), 0) > coalesce(pg_sequence_last_value('postrider.disarmed'), 0) then
        perform postrider.ring_bell();
    end if;
    return event_id;
end
$one$ end, outbox)
$$;

-- Makes a table's recording functions of what is noted, for whom the table belongs to now; or drops them, where nothing is. Whoever calls
-- it, it does no more than that.
create or replace function postrider.make_recorder(relation text, purpose text) returns void
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    owner     constant oid := (select c.relowner from pg_class c where c.oid = postrider.named(make_recorder.relation));
    rule      constant json := (select r.rule from postrider.recorders r where r.relation = make_recorder.relation and r.purpose = make_recorder.purpose);
    name      constant text := postrider.recorder(make_recorder.relation, make_recorder.purpose);
    made      record;
    signature text;
    grantee   oid;
begin
    for made in
        select f.* from (values
            ('record', 'type text, key text, tenant text, payload json, headers json', 'uuid', '', postrider.record_body(rule)),
            ('adopt', 'source_id text, type text, entity text, key text, tenant text, payload json, headers json, created_at timestamptz, noted boolean, born bigint',
             'uuid', 'set search_path = pg_catalog, pg_temp', postrider.adopt_body(make_recorder.relation, false)),
            -- Nobody can tell the planner how many rows an array has: it must not compare each with each.
            ('adopt', 'rows postrider.adoptable[], noted boolean', 'bigint', 'set search_path = pg_catalog, pg_temp set enable_nestloop = off',
             postrider.adopt_body(make_recorder.relation, true))) f (purpose, arguments, returns, settings, body)
        where f.purpose = make_recorder.purpose
    loop
        signature := format('%s(%s)', name, made.arguments);
        if rule is null or owner is null then
            execute format('drop function if exists %s', signature);
            continue;
        end if;
        execute format('create or replace function %s returns %s language plpgsql volatile security definer %s as %L',
            signature, made.returns, made.settings, made.body);
        -- If somebody has put one of that name here before, it is not his any more, nor that of who owned the table before.
        execute format('alter function %s owner to %I', signature, current_user);
        execute format('revoke all on function %s from public', signature);
        for grantee in
            select distinct a.grantee from pg_proc p cross join aclexplode(p.proacl) a
            where p.pronamespace = 'postrider'::regnamespace and a.grantee not in (p.proowner, 0) and 'postrider.' || p.proname = name
        loop
            execute format('revoke all on function %s from %I', signature, pg_get_userbyid(grantee));
        end loop;
        execute format('grant execute on function %s to %I', signature, pg_get_userbyid(owner));
        -- For whoever compares it with what is declared.
        execute format('comment on function %s is %L', signature, rule::text);
    end loop;
end
$$;

-- Lets a table's owner record events of this rule; without one, none any more. Row security asks whether the table is his who says so.
create or replace function postrider.let_record(captured regclass, purpose text, rule json) returns void
    language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    named constant text := (
        select format('%I.%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = captured);
begin
    if let_record.rule is null then
        delete from postrider.recorders r where r.relation = named and r.purpose = let_record.purpose;
    else
        insert into postrider.recorders (relation, purpose, rule) values (named, let_record.purpose, let_record.rule)
        on conflict on constraint recorders_pkey do update set rule = excluded.rule;
    end if;
    perform postrider.make_recorder(named, let_record.purpose);
end
$$;

-- Whether this keeper may move rows of that outbox, until the end of the transaction: one mover after the other, also one that was frozen
-- and wakes up.
create or replace function postrider.hold_keeper(outbox text, keeper uuid) returns boolean
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform from postrider.keepers k
    where k.outbox = hold_keeper.outbox and k.owner = hold_keeper.keeper and k.expires_at > clock_timestamp() for update;
    return found;
end
$$;

-- As this version makes them.
do $$ begin perform postrider.make_recorder(r.relation, r.purpose) from postrider.recorders r; end $$;
