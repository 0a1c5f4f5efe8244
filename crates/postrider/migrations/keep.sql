-- What is there already is kept or refused, never changed by accident: a sink has cursors for the lanes it was created with.
do $install$
declare
    lanes       text := nullif(current_setting('postrider.install.lanes'), '');
    max_payload text := nullif(current_setting('postrider.install.max_payload'), '');
    found       text;
begin
    -- One byte that has no equivalent there (0x81 in WIN1252) would stop every reader at its event, and what brokers say of an event could not
    -- be stored beside it.
    if getdatabaseencoding() <> 'UTF8' then
        raise exception using errcode = '0A000', message = format('postrider: this database has the encoding %s', getdatabaseencoding()),
            detail = 'Events leave in UTF8, and not everything that such a database takes can be told in it, nor the other way round.',
            hint = 'Use a database with the encoding UTF8.';
    end if;
    if to_regprocedure('postrider.schema_version()') is not null then
        execute 'select postrider.schema_version()' into found;
        if found::integer > current_setting('postrider.install.version')::integer then
            raise exception using errcode = '55000',
                message = format('postrider: schema version %s is newer than %s', found, current_setting('postrider.install.version')),
                hint = 'Use a newer postrider.';
        end if;
        execute 'select postrider.lanes()' into found;
        if lanes is not null and lanes <> found then
            raise exception using errcode = '55000', message = format('postrider: this log has %s lanes, %s are refused', found, lanes),
                hint = 'The number of lanes is fixed once the log is installed. Leave it out to keep it.';
        end if;
        lanes := found;
        execute 'select postrider.max_payload()' into found;
        max_payload := coalesce(max_payload, found);
    end if;
    perform set_config('postrider.install.lanes', coalesce(lanes, '16'), true);
    perform set_config('postrider.install.max_payload', coalesce(max_payload, '67108864'), true);
end
$install$;
