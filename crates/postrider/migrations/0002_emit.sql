-- Writing events: emit, emit_many, the context they copy into headers, and emitted() for tests.

-- UUIDv7 with microseconds in the twelve bits after the version, as PostgreSQL 18 does; the built-in where there is one. In SQL, so
-- that the planner puts it in place of the call: 2.2 us against 2.8 us in PL/pgSQL; the random bits alone are 1.2 us.
do $install$
begin
    if current_setting('server_version_num')::integer >= 180000 then
        create or replace function postrider.uuid7() returns uuid
            language sql volatile parallel safe return uuidv7();
    else
        -- In hexadecimal digits, because bits would need the clock's answer twice: eleven of milliseconds (enough until the year 2527),
        -- the version, three of what is below a millisecond, then variant and random bits of a v4.
        create or replace function postrider.uuid7() returns uuid
            language sql volatile parallel safe return (
                '0' || overlay(to_hex((date_part('epoch', clock_timestamp()) * 4096000)::bigint) placing '7' from 12 for 0)
                || substr(gen_random_uuid()::text, 20))::uuid;
    end if;
end
$install$;

-- Every complaint of emit and emit_many: which argument, what was found, what to do. Never returns.
create or replace function postrider.refuse_event(
    type text, payload_bytes bigint, key text, tenant text, entity text, headers_kind text, place text default ''
) returns void
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    max_payload constant bigint := postrider.max_payload();
    too_long text := null;
begin
    if type is null or type = '' then
        raise exception using errcode = case when type is null then '22004' else '22023' end,
            message = format('postrider: the type of an event must not be %s%s', case when type is null then 'null' else 'empty' end, place),
            detail = 'Nothing was written.',
            hint = 'Name what happened, for example ''order.paid''.';
    end if;
    if payload_bytes is null then
        raise exception using errcode = '22004',
            message = format('postrider: the payload of event %L must not be null%s', left(type, 80), place),
            detail = 'Nothing was written.',
            hint = 'An event without content has the payload ''{}'' or ''null'' (the JSON value, in quotes).';
    end if;
    if octet_length(type) > 255 then too_long := format('type is %s bytes long, 255', octet_length(type));
    elsif octet_length(key) > 1024 then too_long := format('key is %s bytes long, 1024', octet_length(key));
    elsif octet_length(tenant) > 255 then too_long := format('tenant is %s bytes long, 255', octet_length(tenant));
    elsif octet_length(entity) > 255 then too_long := format('entity is %s bytes long, 255', octet_length(entity));
    elsif payload_bytes > max_payload then too_long := format('payload is %s bytes long, %s', payload_bytes, max_payload);
    end if;
    if too_long is not null then
        raise exception using errcode = '54000',
            message = format('postrider: event %L is over a limit%s', left(type, 80), place),
            detail = format('Its %s are allowed. Nothing was written.', too_long),
            hint = 'Shorten it: a large body belongs in a table or an object store, with its address in the event. '
                   'The payload''s limit is set by postrider init --max-payload.';
    end if;
    raise exception using errcode = '22023',
        message = format('postrider: the headers of event %L must be a JSON object%s', left(type, 80), place),
        detail = format('They are a JSON %s. Nothing was written.', headers_kind),
        hint = 'Pass something like ''{"traceparent": "00-..."}'', or leave headers out.';
end
$$;

create or replace function postrider.refuse_json(what text, type text, reason text) returns void
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    raise exception using errcode = '22P02',
        message = format('postrider: the %s of event %L %s not JSON', what, left(refuse_json.type, 80),
            case what when 'headers' then 'are' else 'is' end),
        detail = format('%s. Nothing was written.', rtrim(coalesce(reason, 'It cannot be parsed'), '.')),
        hint = 'Text must be quoted inside JSON: ''"hello"'', not ''hello''. to_json(...) turns any SQL value into JSON.';
end
$$;

-- Sinks send headers as headers, and brokers and web servers take few of them: what an event says belongs in its payload.
create or replace function postrider.max_headers() returns integer
    language sql immutable parallel safe return 65536;

create or replace function postrider.refuse_headers(type text, bytes integer, place text default '') returns void
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    raise exception using errcode = '54000',
        message = format('postrider: event %L is over a limit%s', left(refuse_headers.type, 80), refuse_headers.place),
        detail = format('Its headers, with the context of the transaction, are %s bytes long, %s are allowed. Nothing was written.',
            refuse_headers.bytes, postrider.max_headers()),
        hint = 'Headers are for routing and tracing: what the event says belongs in its payload.';
end
$$;

-- The context of this transaction as an object; null if there is none. Anybody can set it by hand, to anything.
create or replace function postrider.checked_context(context text) returns jsonb
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    object jsonb;
    reason text;
    detail text;
begin
    if checked_context.context is null or checked_context.context = '' then
        return null;
    end if;
    begin
        object := checked_context.context::jsonb;
    exception when data_exception or program_limit_exceeded then
        get stacked diagnostics reason = message_text, detail = pg_exception_detail;
    end;
    if jsonb_typeof(object) is distinct from 'object' then
        raise exception using errcode = '22023',
            message = 'postrider: the context of this transaction is not a JSON object',
            detail = format('The setting postrider.context is %s. Nothing was written.',
                coalesce('a JSON ' || jsonb_typeof(object), 'not JSON: ' || rtrim(coalesce(nullif(detail, ''), reason), '.'))),
            hint = 'Set it with select postrider.set_context(''{"initiator": "user-7"}''). To clear it: set postrider.context = ''''.';
    end if;
    return object;
end
$$;

-- The context of this transaction: an object that every later event of the transaction carries in its headers. With the owner's rights,
-- because the functions above are open to nobody.
create or replace function postrider.set_context(context jsonb) returns void
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    if set_context.context is null or jsonb_typeof(set_context.context) <> 'object' then
        raise exception using errcode = '22023',
            message = 'postrider: a context must be a JSON object',
            detail = format('It is %s.', coalesce('a JSON ' || jsonb_typeof(set_context.context), 'null')),
            hint = 'select postrider.set_context(''{"initiator": "user-7"}''). A null value takes an entry out.';
    end if;
    -- jsonb_strip_nulls would also take the nulls inside an entry.
    perform set_config('postrider.context', (
        (coalesce(postrider.checked_context(current_setting('postrider.context', true)), '{}') || set_context.context)
        - array(select e.key from jsonb_each(set_context.context) e where e.value = 'null'))::text, true);
end
$$;

create or replace function postrider.set_context(name text, value text) returns void
    language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
begin
    if set_context.name is null then
        raise exception using errcode = '22023',
            message = 'postrider: an entry of the context must have a name',
            detail = 'The name is null.',
            hint = 'select postrider.set_context(''initiator'', ''user-7''). A null value takes an entry out.';
    end if;
    perform postrider.set_context(jsonb_build_object(set_context.name, set_context.value));
end
$$;

-- The context of the transaction, and over it the headers if there are any. Only jsonb can join two objects, and there is JSON that it cannot hold.
create or replace function postrider.join_headers(type text, context text, headers json) returns json
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    object constant jsonb := postrider.checked_context(join_headers.context);
    code   text;
    reason text;
    detail text;
begin
    if join_headers.headers is null then
        return to_json(object);
    end if;
    return to_json(object || join_headers.headers::jsonb);
exception when data_exception or program_limit_exceeded then
    get stacked diagnostics code = returned_sqlstate, reason = message_text, detail = pg_exception_detail;
    raise exception using errcode = code,
        message = format('postrider: the headers of event %L cannot be joined with the context', left(join_headers.type, 80)),
        detail = format('%s. Nothing was written.', rtrim(coalesce(nullif(detail, ''), reason), '.')),
        hint = E'Beside a context, headers must fit into jsonb, which has no \\u0000, no half of a surrogate pair and no endless numbers.';
end
$$;

-- emit, once per type of its JSON arguments. With json alone a jsonb argument finds no function, with json and jsonb a literal is
-- ambiguous; with text as well everything resolves, and a literal goes the way of text, byte for byte.
--
-- On 15 a call takes 19 us for json, 21.5 us for text, 22 us for jsonb. A function that only inserts takes 12.5 us of it: the row 5.5 us,
-- as in a statement over many rows, the search_path 2 us, and an executor that is started and ended for each row. The id takes 4 us.
-- Variables are cheaper than the same expressions inside VALUES, which are prepared in every call (1 us for slot and lane).
do $install$
declare
    lanes constant integer := current_setting('postrider.install.lanes')::integer;
    max_payload constant bigint := current_setting('postrider.install.max_payload')::bigint;
    has_is_json constant boolean := current_setting('server_version_num')::integer >= 160000;
    json_type text;
    body text;
    variables text;
    parse text;
begin
    if lanes < 1 or lanes > 1024 or lanes & (lanes - 1) <> 0 then
        raise exception using errcode = '22023', message = format('postrider: %s lanes are not possible', lanes),
            hint = 'Choose a power of two from 1 to 1024; 16 is the default, 1 gives one total order.';
    end if;
    execute format('create or replace function postrider.lanes() returns integer language sql immutable parallel safe as %L',
        format('select %s', lanes));
    execute format('create or replace function postrider.max_payload() returns bigint language sql immutable parallel safe as %L',
        format('select %s::bigint', max_payload));

    foreach json_type in array array['text', 'json', 'jsonb'] loop
        if json_type = 'json' then
            body := 'payload';
            variables := 'all_headers json := headers;';
            parse := '';
        elsif json_type = 'jsonb' then
            -- to_json writes the text that a cast would write, and does not parse it again.
            body := 'body';
            variables := 'body constant json := to_json(payload); all_headers json := to_json(headers);';
            parse := '';
        elsif has_is_json then
            body := 'payload::json';
            variables := 'all_headers json;';
            -- Asked first, because the parser's own complaint has no hint.
            parse := $parse$
                if not (payload is json) then perform postrider.refuse_json('payload'::text, type, null::text); end if;
                if not (headers is json) then perform postrider.refuse_json('headers'::text, type, null::text); end if;
                all_headers := headers::json;$parse$;
        else
            body := 'body';
            variables := 'body json; all_headers json;';
            -- Before 16 only a handler can put the complaint into words, and its block is a subtransaction: 2.5 us with the parsing.
            parse := $parse$
                declare
                    reason text;
                begin
                    body := payload::json;
                    all_headers := headers::json;
                exception when invalid_text_representation or untranslatable_character then
                    get stacked diagnostics reason = pg_exception_detail;
                    perform postrider.refuse_json(case when body is null then 'payload' else 'headers' end, type, reason);
                end;$parse$;
        end if;
        execute format($create$
            create or replace function postrider.emit(
                type text, payload %1$s, key text default null, tenant text default null, entity text default null, headers %1$s default null
            ) returns uuid
                language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $function$
            #variable_conflict use_variable
            declare
                event_id constant uuid := postrider.uuid7();
                -- Null after a schema-only restore: without the coalesce the caller's transaction would fail.
                slot constant smallint := (coalesce(pg_sequence_last_value('postrider.slot'), 0) & 7)::smallint;
                -- The hash is signed: a mask, never abs().
                lane constant smallint := (case when key is null then uuid_hash_extended(event_id, 0)
                                                else hashtextextended(key collate "C", 0) end & %2$s)::smallint;
                %5$s
            begin
                if type is null or type = '' or octet_length(type) > 255 or octet_length(key) > 1024
                   or octet_length(tenant) > 255 or octet_length(entity) > 255
                   or payload is null or octet_length(%7$s::text) > %3$s then
                    perform postrider.refuse_event(type, octet_length(%7$s::text)::bigint, key, tenant, entity, null::text, ''::text);
                end if;%6$s
                if json_typeof(all_headers) <> 'object' then
                    perform postrider.refuse_event(type, 0::bigint, key, tenant, entity, json_typeof(all_headers), ''::text);
                end if;
                if current_setting('postrider.context', true) <> '' then
                    all_headers := postrider.join_headers(type, current_setting('postrider.context', true), all_headers);
                end if;
                if octet_length(all_headers::text) > %8$s then
                    perform postrider.refuse_headers(type, octet_length(all_headers::text), ''::text);
                end if;
                insert into postrider.events (slot, lane, id, type, entity, key, tenant, payload, headers)
                values (slot, lane, event_id, type, entity, key, tenant, %4$s, all_headers);
                -- After the row has its xid: a reader about to sleep waits for every xid older than its ticket, so either
                -- it waits for ours or we see its ticket.
                if coalesce(pg_sequence_last_value('postrider.armed'), 0) > coalesce(pg_sequence_last_value('postrider.disarmed'), 0) then
                    perform postrider.ring_bell();
                end if;
                return event_id;
            end
            $function$
            $create$,
            json_type, lanes - 1, max_payload, body, variables, parse, case when json_type = 'jsonb' then 'body' else 'payload' end,
            postrider.max_headers());
    end loop;
end
$install$;

-- A reader sleeps: wake it, with the ticket we saw. Not when its sleep is over anyway: a reader that died asleep would make every
-- producer notify for ever, and committing notifiers go one at a time.
-- Nor when the queue of notifications fills up: a full one fails the COMMIT of whoever notified. Asking costs about 1 us.
create or replace function postrider.ring_bell() returns void
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    ticket constant bigint := coalesce(pg_sequence_last_value('postrider.armed'), 0);
begin
    if ticket > coalesce(pg_sequence_last_value('postrider.disarmed'), 0)
       and date_part('epoch', clock_timestamp()) < coalesce(pg_sequence_last_value('postrider.armed_until'), 0)
       and pg_notification_queue_usage() < 0.75 then
        perform pg_notify('postrider', ticket::text);
    end if;
end
$$;

-- Why an element of emit_many cannot be taken apart, though it is JSON. Never returns.
create or replace function postrider.refuse_escape(events json) returns void
    language plpgsql stable set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    element record;
    code    text;
    reason  text;
    detail  text;
begin
    for element in select e.event, e.place from json_array_elements(events) with ordinality as e (event, place) loop
        begin
            perform element.event -> '';
        exception when data_exception then
            get stacked diagnostics code = returned_sqlstate, reason = message_text, detail = pg_exception_detail;
            raise exception using errcode = code,
                message = format('postrider: event %s of emit_many contains an escape that is no character here', element.place),
                detail = format('%s. Nothing was written.', rtrim(coalesce(nullif(detail, ''), reason), '.')),
                hint = E'An event with \\u0000, half of a surrogate pair, or a character that the encoding of this database has not, can be emitted by itself: select postrider.emit(...).';
        end;
    end loop;
    raise exception 'postrider: the argument of emit_many cannot be read';
end
$$;

-- Many events in one statement, in the order of the array: [{"type": ..., "payload": ..., "key": ..., "tenant": ..., "entity": ..., "headers": ...}, ...].
-- The array is parsed three times (elements, their fields, the names of their fields), not once per field: 18 us an event on 15 instead of 43 us.
create or replace function postrider.emit_many(events json) returns setof uuid
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    lane_mask constant integer := postrider.lanes() - 1;
    max_payload constant bigint := postrider.max_payload();
    context constant text := nullif(current_setting('postrider.context', true), '');
    -- Once, not per event.
    context_object constant json := to_json(postrider.checked_context(context));
    bad record;
begin
    if events is null or json_typeof(events) <> 'array' then
        raise exception using errcode = '22023', message = 'postrider: emit_many takes a JSON array of events',
            detail = format('It was given %s. Nothing was written.', coalesce('a JSON ' || json_typeof(events), 'null')),
            hint = 'select postrider.emit_many(''[{"type": "order.paid", "payload": {"order": 7}, "key": "7"}]'')';
    end if;
    -- In a block of its own, without the insert: a subtransaction that has written takes an xid, and more than 64 of those make every
    -- snapshot of the server slower.
    begin
        select f.place, f.kind, f.field into bad
        from (
            select e.place, json_typeof(e.event) as kind,
                   json_object_keys(case when json_typeof(e.event) = 'object' then e.event else '{"": null}' end) as field
            from json_array_elements(events) with ordinality as e (event, place)) f
        where f.field not in ('type', 'payload', 'key', 'tenant', 'entity', 'headers')
        order by f.place limit 1;
    exception when untranslatable_character or invalid_text_representation then
        perform postrider.refuse_escape(events);
    end;
    if bad.place is not null then
        raise exception using errcode = '22023', message = format('postrider: event %s of emit_many is not an event', bad.place),
            detail = case when bad.kind <> 'object' then format('It is a JSON %s. Nothing was written.', bad.kind)
                          else format('It has the unknown field %s. Nothing was written.', to_json(bad.field)) end,
            hint = 'The fields of an event are type, payload, key, tenant, entity and headers.';
    end if;
    return query
        insert into postrider.events (slot, lane, id, type, entity, key, tenant, payload, headers)
        select coalesce(pg_sequence_last_value('postrider.slot'), 0) & 7,
               case when n.key is null then uuid_hash_extended(n.id, 0) else hashtextextended(n.key collate "C", 0) end & lane_mask,
               n.id,
               case when n.type is null or n.type = '' or octet_length(n.type) > 255 or octet_length(n.key) > 1024
                         or octet_length(n.tenant) > 255 or octet_length(n.entity) > 255
                         or n.payload is null or octet_length(n.payload::text) > max_payload or json_typeof(n.headers) <> 'object'
                    then postrider.refuse_event(n.type, octet_length(n.payload::text)::bigint, n.key, n.tenant, n.entity, json_typeof(n.headers),
                                                format(' (event %s of emit_many)', n.place))::text
                    else n.type end,
               n.entity, n.key, n.tenant, n.payload,
               case when octet_length(n.all_headers::text) > postrider.max_headers()
                    then postrider.refuse_headers(n.type, octet_length(n.all_headers::text), format(' (event %s of emit_many)', n.place))::text::json
                    else n.all_headers end
        from (
            select postrider.uuid7() as id, e.place, e.type, e.entity, e.key, e.tenant, e.headers,
                   case when context is null then e.headers when e.headers is null then context_object
                        -- What is no object is refused above.
                        when json_typeof(e.headers) = 'object' then postrider.join_headers(e.type, context, e.headers) end as all_headers,
                   -- Byte for byte, except that a string was unescaped and a null is none any more.
                   case when json_typeof(e.payload) <> 'string' then e.payload else e.event -> 'payload' end as payload
            from rows from (
                json_to_recordset(events) as (type text, entity text, key text, tenant text, payload json, headers json),
                json_array_elements(events)
            ) with ordinality as e (type, entity, key, tenant, payload, headers, event, place)
            order by e.place
            offset 0) n
        returning events.id;
    perform postrider.ring_bell();
end
$$;

create or replace function postrider.emit_many(events jsonb) returns setof uuid
    language sql volatile as 'select postrider.emit_many(events::pg_catalog.json)';
create or replace function postrider.emit_many(events text) returns setof uuid
    language plpgsql volatile set search_path = pg_catalog, pg_temp as $$
declare
    parsed json;
    reason text;
begin
    begin
        parsed := emit_many.events::json;
    exception when invalid_text_representation or untranslatable_character then
        get stacked diagnostics reason = pg_exception_detail;
        raise exception using errcode = '22P02', message = 'postrider: the argument of emit_many is not JSON',
            detail = format('%s. Nothing was written.', rtrim(reason, '.')),
            hint = 'Pass one JSON array: select postrider.emit_many(''[{"type": "order.paid", "payload": {"order": 7}}]'')';
    end;
    return query select postrider.emit_many(parsed);
end
$$;

-- The events of my open transaction, for tests in any language. It may have changed tables that the caller may not read, and their triggers
-- record whole rows: so whoever asks must be allowed to read every captured table. By the role of the session, as that of the caller is hidden here.
create or replace function postrider.emitted() returns table (
    id uuid, source_id text, type text, key text, tenant text, entity text, payload json, headers json, created_at timestamptz
)
    language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
declare
    asking constant name := coalesce(nullif(current_setting('role'), 'none'), session_user);
    hidden text;
begin
    select string_agg(r.relation, ', ' order by r.relation) into hidden from postrider.recorders r
    where r.purpose = 'record' and not has_table_privilege(asking, postrider.named(r.relation), 'select');
    if hidden is not null then
        raise exception using errcode = '42501',
            message = format('postrider: %I may not see what this transaction emitted', asking),
            detail = format('Events of captured tables hold whole rows, and the role may not read %s.', hidden),
            hint = 'Let the role of your tests read them (grant select on ... to ...), or ask as the owner of the tables.';
    end if;
    return query
        select e.id, e.source_id, e.type, e.key, e.tenant, e.entity, e.payload, e.headers, e.created_at
        from postrider.events e
        -- In a log that was restored into a younger cluster older rows may bear the same xid: those are not of this transaction.
        where e.xid = pg_current_xact_id_if_assigned() and age(e.xmin) <= 0
        order by e.seq;
end
$$;
