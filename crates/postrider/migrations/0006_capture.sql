-- What the triggers of captured tables need beside the log.

-- A write survived although its event could not be recorded: everything that recording it later takes. Of the tables with
-- `on_failure: record`, and of any table whose columns changed under its trigger.
create table if not exists postrider.capture_failures (
    failure   bigint generated always as identity primary key,
    relation  text        not null,
    operation text        not null,
    old_row   json,
    new_row   json,
    context   json,
    sqlstate  text        not null,
    message   text        not null,
    failed_at timestamptz not null default clock_timestamp()
);
-- The key, where it was known: then only events of that key wait behind it. With the number of each column, so that the row is
-- understood when its columns have other names; numbers are those of one table, which has another oid after a restore.
alter table postrider.capture_failures add column if not exists key text;
alter table postrider.capture_failures add column if not exists relid oid;
alter table postrider.capture_failures add column if not exists columns json;
alter table postrider.capture_failures add column if not exists origin text;
-- The row that it hung on when it was written: JSON null where there was none, nothing where nobody could tell. By the time the event is
-- recorded it may be another, or gone. With the numbers of its columns, too.
alter table postrider.capture_failures add column if not exists parent_row json;
alter table postrider.capture_failures add column if not exists parent_relid oid;
alter table postrider.capture_failures add column if not exists parent_columns json;
-- Whose trigger has kept it.
alter table postrider.capture_failures add column if not exists kept_by name default current_user;
create index if not exists capture_failures_key on postrider.capture_failures (relation, (coalesce(left(key, 256), '')));
create index if not exists capture_failures_relid on postrider.capture_failures (relid, (coalesce(left(key, 256), '')));

-- The cluster and the database: in others the same oid is another table's.
create or replace function postrider.here() returns text
    language sql stable set search_path = pg_catalog, pg_temp as $$
    select y.system_identifier || '/' || d.oid from pg_control_system() y, pg_database d where d.datname = current_database()
$$;
alter table postrider.capture_failures alter column origin set default postrider.here();

-- Whether a role could have kept something of a table: it is its owner, or that of one that it is a partition of, or a member of him.
create or replace function postrider.keeps_for(keeper name, relation oid) returns boolean
    language sql stable
    return exists (
        select from pg_roles r
        join pg_class c on c.oid = relation or c.oid in (select a.relid from pg_partition_ancestors(relation) a)
        where r.rolname = keeper and pg_has_role(r.oid, c.relowner, 'member'));

drop function if exists postrider.kept_table(text, oid, text, text);
-- The table that a write was kept of: also under another name, as long as it is there; after a restore the one of its name. Not one that
-- somebody else has made under the name of a table that is gone.
create or replace function postrider.kept_table(relation text, relid oid, origin text, kept_by name, here text) returns oid
    language sql stable as $$
    select case when origin operator(pg_catalog.=) here and exists (select from pg_catalog.pg_class c where c.oid operator(pg_catalog.=) kept_table.relid) then relid
                when postrider.keeps_for(kept_by, pg_catalog.to_regclass(relation)::pg_catalog.oid) then pg_catalog.to_regclass(relation)::pg_catalog.oid end
$$;

-- As far as this one has come, nothing is kept any more: triggers compare it with that of the failures, and look no further while it is
-- not behind. One look at two sequences costs nothing beside a look at a table.
create sequence if not exists postrider.recaptured;

-- Rows that were deleted in a transaction, for the triggers of their children: when a deletion cascades the parent is gone before
-- any trigger of a child runs. By each column that children know it by; without one, a partition that goes with its table. Swept by
-- the relay; no reader outside the transaction has a use for them.
create table if not exists postrider.departed (
    xid      xid8 not null default pg_current_xact_id(),
    relation oid  not null,
    field    text not null,
    key      text not null,
    departed json not null,
    primary key (xid, relation, field, key)
);

-- For the trigger of a parent, which makes the row's JSON with the rights of the parent's owner: a type may bring a cast along. One
-- that came again and went again is the last one. Row security asks whose trigger it is, whatever the writing session has set.
create or replace function postrider.keep_departed(relation oid, field text, key text, departed json) returns void
    language sql volatile set search_path = pg_catalog, pg_temp set row_security = on as $$
    insert into postrider.departed (relation, field, key, departed)
    select coalesce(pg_partition_root(keep_departed.relation), keep_departed.relation), keep_departed.field, keep_departed.key, keep_departed.departed
    where keep_departed.key is not null
    on conflict (xid, relation, field, key) do update set departed = excluded.departed
$$;
-- It made that JSON with the rights of the log's owner. Triggers that still call it are replaced by `postrider apply`.
do $$
begin
    drop function if exists postrider.remember_departed();
exception when dependent_objects_still_exist then
    null;
end
$$;

-- Whether a TRUNCATE means this table of a tree, and not one above it: then its trigger fires behind that one's, which has left a
-- mark. With the file that the table was in, which is another after a TRUNCATE: a mark that is left over counts for nothing. With the
-- rights of who calls it: row security lets the owner of the tree alone leave one, or others could hide a TRUNCATE.
create or replace function postrider.is_truncated_alone(truncated oid, root oid) returns boolean
    language plpgsql volatile set search_path = pg_catalog, pg_temp set row_security = on as $$
begin
    -- Detached since.
    if not exists (select from pg_partition_ancestors(truncated) a where a.relid = root) then
        return false;
    end if;
    delete from postrider.departed d
    where d.xid = pg_current_xact_id() and d.relation = truncated and d.field = '' and d.key = coalesce(pg_relation_filenode(truncated), 0)::text;
    if found then
        return false;
    end if;
    insert into postrider.departed (relation, field, key, departed)
    select t.relid, '', coalesce(pg_relation_filenode(t.relid), 0)::text, 'null' from pg_partition_tree(truncated) t where t.level > 0
    on conflict do nothing;
    return true;
end
$$;

create or replace function postrider.base64(bytes bytea) returns text
    language sql immutable parallel safe return translate(encode(bytes, 'base64'), E'\n', '');

-- A type without the domains around it.
create or replace function postrider.base_type(type oid) returns oid
    language sql stable set search_path = pg_catalog, pg_temp as $$
    with recursive below (type, depth) as (
        select base_type.type, 0
        union all
        select t.typbasetype, b.depth + 1 from below b join pg_type t on t.oid = b.type where t.typtype = 'd')
    select b.type from below b order by b.depth desc limit 1
$$;

-- A row as JSON of which the same row can be made again. A type that brings a cast to json along (hstore), be it inside an array or a
-- composite, does not take what comes out of that, nor does an array of documents, which takes a list in it for one of its own: of such
-- a row every value is told by its text, which every type takes.
create or replace function postrider.row_json(captured record, relation oid) returns json
    language plpgsql stable strict set search_path = pg_catalog, pg_temp set timezone = 'UTC' set intervalstyle = 'iso_8601'
    set extra_float_digits = 1 set bytea_output = 'hex' set datestyle = 'ISO, MDY' as $$
declare
    whole text;
    texts text[];
begin
    -- The server looks for such a cast only of types that are not its own, which have higher numbers.
    if not exists (
        with recursive inside (type) as (
            select a.atttypid from pg_attribute a where a.attrelid = relation and a.attnum > 0 and not a.attisdropped
              and (a.atttypid >= 16384 or a.atttypid in ('json[]'::regtype, 'jsonb[]'::regtype))
            union
            select f.type from inside i join pg_type t on t.oid = i.type
            cross join lateral (
                select t.typbasetype union all select t.typelem
                union all select a.atttypid from pg_attribute a where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped) f (type)
            where f.type >= 16384 or f.type in ('json[]'::regtype, 'jsonb[]'::regtype))
        select from inside i
        where exists (select from pg_cast c where c.castsource = i.type and c.casttarget = 'json'::regtype and c.castmethod = 'f')
           or exists (select from pg_type t join pg_type e on e.oid = t.typelem
                      where t.oid = i.type and (e.oid in ('json'::regtype, 'jsonb'::regtype) or e.typbasetype in ('json'::regtype, 'jsonb'::regtype)))) then
        return to_json(captured);
    end if;
    -- (1,"a ""b"" c",): what stands between quotes has quotes and backslashes twice, and nothing at all is null.
    whole := captured::text;
    texts := array(
        select case when f.part[1] is not null then replace(replace(f.part[1], '""', '"'), E'\\\\', E'\\') else nullif(f.part[2], '') end
        from regexp_matches(',' || substr(whole, 2, length(whole) - 2), E',(?:"((?:[^"\\\\]|""|\\\\\\\\)*)"|([^",]*))', 'g') with ordinality f (part, place)
        order by f.place);
    return (
        select json_object_agg(c.name, case when c.base in ('json'::regtype, 'jsonb'::regtype) then texts[c.place]::json else to_json(texts[c.place]) end
                               order by c.place)
        from (select a.attname, case when a.atttypid < 16384 then a.atttypid else postrider.base_type(a.atttypid) end, row_number() over (order by a.attnum)
              from pg_attribute a where a.attrelid = relation and a.attnum > 0 and not a.attisdropped) c (name, base, place));
end
$$;

-- The row that another one refers to, for a trigger under which the names between the two have changed: by the foreign key. JSON null if
-- it refers to none, and nothing where that cannot be told: it is called in a handler, and must not fail.
create or replace function postrider.referred_row(captured record, child oid, by smallint) returns json
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    reference record;
    referred json;
begin
    select postrider.row_json(captured, child) ->> a.attname as value, c.confrelid as parent, k.attname as field,
           format_type(k.atttypid, null) as type, format('operator(%I.%s)', n.nspname, o.oprname) as equal
    into strict reference
    from pg_constraint c
    join pg_attribute a on a.attrelid = c.conrelid and a.attnum = c.conkey[1]
    join pg_attribute k on k.attrelid = c.confrelid and k.attnum = c.confkey[1]
    join pg_operator o on o.oid = c.conpfeqop[1]
    join pg_namespace n on n.oid = o.oprnamespace
    where c.contype = 'f' and c.conparentid = 0 and c.conrelid = child and c.conkey = array[by]
      -- A declared parent has it.
      and exists (select from pg_trigger t where t.tgrelid = c.confrelid and t.tgname = '00_postrider_departed');
    if reference.value is null then
        return 'null';
    end if;
    execute format('select postrider.row_json(p, $1) from %s p where p.%I %s $2::%s', reference.parent::regclass, reference.field, reference.equal, reference.type)
        into referred using reference.parent, reference.value;
    if referred is null then
        -- Which may be kept by something else than the text of its key.
        referred := postrider.departed_row(reference.parent, reference.field, reference.value);
        referred := case when referred ->> reference.field = reference.value then referred end;
    end if;
    return referred;
exception when others then
    return null;
end
$$;

-- Fields of a row that came after its trigger was generated, each behind a comma; if told so only those that differ in another
-- row. Here nothing is known at generation time: the types are looked up, and every setting that changes a text is set.
create or replace function postrider.unknown_fields(relation oid, known text[], captured record, other record, only_changed boolean) returns text
    language plpgsql stable set search_path = pg_catalog, pg_temp set timezone = 'UTC' set intervalstyle = 'iso_8601'
    set extra_float_digits = 1 set bytea_output = 'hex' set datestyle = 'ISO, MDY' set quote_all_identifiers = off as $$
declare
    row constant json := to_json(captured);
    other_row constant json := to_json(other);
begin
    if exists (select from pg_attribute a where a.attrelid = relation and a.attgenerated = 'v' and a.attname <> all (known)) then
        raise datatype_mismatch using message = 'a virtual column has come to ' || relation::regclass || ', which its trigger does not know how to compute';
    end if;
    return (
        select coalesce(string_agg(',' || to_json(f.key) || ':' || case
                   when f.value::text <> 'null' and postrider.base_type(a.atttypid) = 'bytea'::regtype
                   then to_json(postrider.base64((f.value #>> '{}')::bytea))::text
                   else f.value::text end, ''), '')
        from json_each(row) f
        join pg_attribute a on a.attrelid = relation and a.attname = f.key
        where f.key <> all (known)
          and (not only_changed or f.value::text is distinct from (other_row -> f.key)::text));
end
$$;

-- Settings of the session as headers; null if there is none.
-- A body that is one expression, so that it costs its callers no call.
create or replace function postrider.captured_headers(type text, headers json) returns json
    language sql stable
    return case when coalesce(current_setting('postrider.context', true), '') <> ''
                then postrider.join_headers(type, current_setting('postrider.context', true), headers)
                else headers end;

drop function if exists postrider.record_failure(oid, text, json, json, json, text, text);
drop function if exists postrider.record_failure(oid, text, json, json, json, text, text, text);
-- With the rights of who calls it: row security asks whose table it is, whatever the writing session has set; nor has that a say in how
-- the table's name is written.
create or replace function postrider.record_failure(relation oid, operation text, old_row json, new_row json, context json, state text, message text,
    key text default null, parent_row json default null, parent oid default null) returns void
    language sql volatile set search_path = pg_catalog, pg_temp set row_security = on set quote_all_identifiers = off as $$
    insert into postrider.capture_failures
        (relation, operation, old_row, new_row, context, sqlstate, message, key, relid, columns, parent_row, parent_relid, parent_columns)
    values (relation::regclass::text, operation, old_row, new_row, context, state, message, key, relation,
        (select json_object_agg(a.attname, a.attnum) from pg_attribute a where a.attrelid = relation and a.attnum > 0 and not a.attisdropped),
        parent_row, parent,
        (select json_object_agg(a.attname, a.attnum) from pg_attribute a where a.attrelid = parent and a.attnum > 0 and not a.attisdropped))
$$;

-- Whether an event must wait: one of its key that came before it waits to be recorded, or one whose key is not known.
create or replace function postrider.waits_behind(relation oid, key text) returns boolean
    language sql stable set search_path = pg_catalog, pg_temp as $$
    with tables (relid, name) as materialized (
        select waits_behind.relation, waits_behind.relation::regclass::text
        union
        select t.relid, t.relid::text from pg_partition_tree(coalesce(pg_partition_root(waits_behind.relation), waits_behind.relation)) t),
    keys (key) as (values (''), (left(waits_behind.key, 256)))
    select exists (
        select from tables t cross join keys k
        join postrider.capture_failures f on f.relation = t.name and coalesce(left(f.key, 256), '') = k.key
        where postrider.kept_table(f.relation, f.relid, f.origin, f.kept_by, (select postrider.here())) = t.relid
        union all
        select from tables t cross join keys k
        join postrider.capture_failures f on f.relid = t.relid and coalesce(left(f.key, 256), '') = k.key
        where postrider.kept_table(f.relation, f.relid, f.origin, f.kept_by, (select postrider.here())) = t.relid)
$$;

-- A row that was kept, under the names that its columns have now.
create or replace function postrider.kept_row(kept json, columns json, relation oid) returns json
    language sql stable set search_path = pg_catalog, pg_temp as $$
    select json_object_agg(a.attname, f.value)
    from json_each(kept) f
    join pg_attribute a on a.attrelid = relation and a.attnum = (columns ->> f.key)::smallint and not a.attisdropped
$$;

-- Lets triggers look no further, if nothing is kept any more and nobody is about to keep something. In a transaction of its own: what
-- a sequence is set to stays when a transaction is rolled back.
create or replace function postrider.settle_failures() returns void
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp set lock_timeout = '50ms' as $$
begin
    if current_setting('transaction_isolation') <> 'read committed'
       or coalesce(pg_sequence_last_value('postrider.capture_failures_failure_seq'), 0) <= coalesce(pg_sequence_last_value('postrider.recaptured'), 0) then
        return;
    end if;
    lock table postrider.capture_failures in share row exclusive mode;
    if not exists (select from postrider.capture_failures) then
        perform setval('postrider.recaptured', pg_sequence_last_value('postrider.capture_failures_failure_seq'));
    end if;
exception when lock_not_available then
    null;
end
$$;

-- Whether writes of this table, or of a partition of it, wait to be recorded.
create or replace function postrider.has_failures(relation oid) returns boolean
    language sql stable set search_path = pg_catalog, pg_temp as $$
    select exists (
        select from postrider.capture_failures f
        where postrider.kept_table(f.relation, f.relid, f.origin, f.kept_by, (select postrider.here())) in (select has_failures.relation union all select t.relid from pg_partition_tree(has_failures.relation) t))
$$;

-- What waits for `postrider recapture`, by table. Nothing of the rows.
create or replace view postrider.uncaptured as
    select f.relation, count(*) as failures, min(f.failed_at) as oldest, (array_agg(f.sqlstate order by f.failure desc))[1] as sqlstate
    from (select failure, relation, failed_at, sqlstate from postrider.capture_failures order by failure limit 10000) f
    group by f.relation;

-- The partitions of captured tables, as they were when somebody looked: those that come or go since bring or take rows of which no
-- trigger hears. By name, so that a dump carries it.
create table if not exists postrider.partitions (
    parent    text not null,
    partition text not null,
    primary key (parent, partition)
);
-- Which table it was, and how it came to be a partition: that of a cluster and its database, as others have other numbers for the same.
alter table postrider.partitions add column if not exists origin text;

-- The partitions of a table as they are. One that was made as a partition has a column that no ATTACH has touched since it was made.
create or replace function postrider.partitions_of(captured oid) returns table (relid oid, name text, cluster text, origin text, born boolean)
    language sql stable set search_path = pg_catalog, pg_temp as $$
    select c.oid, format('%I.%I', n.nspname, c.relname), o.cluster, o.cluster || '/' || c.oid || '/' || i.xmin,
           s.xmin::text = i.xmin::text
           and (exists (select from pg_attribute a
                        where a.attrelid = c.oid and a.attnum > 0 and a.xmin::text = s.xmin::text and a.cmin::text = s.cmin::text)
                -- Defaults are put to columns behind the making: then nothing tells.
                or not exists (select from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and not a.atthasdef))
    from pg_partition_tree(captured) t
    join pg_class c on c.oid = t.relid
    join pg_namespace n on n.oid = c.relnamespace
    join pg_inherits i on i.inhrelid = c.oid
    -- A column that every table has, and that nothing touches.
    join pg_attribute s on s.attrelid = c.oid and s.attnum = -1
    cross join (select y.system_identifier || '/' || d.oid from pg_control_system() y, pg_database d where d.datname = current_database()) o (cluster)
    where t.level > 0
$$;

create or replace function postrider.note_partitions(captured regclass) returns void
    language sql volatile set search_path = pg_catalog, pg_temp as $$
    delete from postrider.partitions p where p.parent = captured::text;
    insert into postrider.partitions (parent, partition, origin)
    select captured::text, p.name, p.origin from postrider.partitions_of(captured) p;
$$;

-- How far a backfill has come: along the primary key, behind the row with these values.
create table if not exists postrider.backfills (
    relation    text        not null,
    condition   text        not null,
    place       text[],
    emitted     bigint      not null default 0,
    started_at  timestamptz not null default now(),
    finished_at timestamptz,
    primary key (relation, condition)
);
-- Of that table of this database: one that is made under its name later is walked from its beginning.
alter table postrider.backfills add column if not exists relid oid;
alter table postrider.backfills add column if not exists origin text;
alter table postrider.backfills alter column origin set default postrider.here();
