-- The four roles, where they do not exist yet. Twenty installers at once, in several databases, may try.
do $install$
declare
    wanted text;
begin
    foreach wanted in array array[
        current_setting('postrider.install.emit_role'), current_setting('postrider.install.relay_role'),
        current_setting('postrider.install.consume_role'), current_setting('postrider.install.reader_role')]
    loop
        if not exists (select from pg_roles where rolname = wanted::name) then
            begin
                execute format('create role %I nologin', wanted);
            exception when duplicate_object or unique_violation then
                null;
            end;
        end if;
    end loop;
end
$install$;
