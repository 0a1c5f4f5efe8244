-- Who may do what. Run after every installation; the names of the roles come as settings of the installing transaction.
do $install$
declare
    emit    constant text := current_setting('postrider.install.emit_role');
    relay   constant text := current_setting('postrider.install.relay_role');
    consume constant text := current_setting('postrider.install.consume_role');
    reader  constant text := current_setting('postrider.install.reader_role');
    routine regprocedure;
    slot    regclass;
    again   text;
begin
    -- Nothing of ours is open to everybody.
    revoke all on schema postrider, postrider_capture from public;
    revoke all on all tables in schema postrider from public;
    revoke all on all sequences in schema postrider from public;
    revoke all on all functions in schema postrider from public;

    execute format('grant usage on schema postrider to %I, %I, %I, %I', emit, relay, consume, reader);
    -- Relays call the functions of tables, each of which is granted by `postrider apply`; who looks compares them with what is declared.
    execute format('grant usage on schema postrider_capture to %I, %I', relay, reader);

    -- May only emit: no table, no sequence, only functions.
    for routine in
        select p.oid::regprocedure from pg_proc p
        where p.pronamespace = 'postrider'::regnamespace and p.proname in ('emit', 'emit_many', 'set_context', 'emitted')
    loop
        execute format('grant execute on function %s to %I, %I', routine, emit, consume);
    end loop;

    -- The receiving end: functions that look after themselves, no table.
    for routine in
        select p.oid::regprocedure from pg_proc p
        where p.pronamespace = 'postrider'::regnamespace
          and p.proname in ('first_time', 'turn_inbox', 'inbox_retention', 'subscribe', 'next_batch', 'finish_batch', 'give_up', 'postpone', 'begin_try', 'next_batch_at',
                            'take_ticket', 'disarm', 'begin_attempt', 'fail_attempt', 'end_attempts', 'sweep_attempts', 'keep_message')
    loop
        execute format('grant execute on function %s to %I', routine, consume);
    end loop;
    execute format('grant execute on function postrider.turn_inbox(interval), postrider.take_ticket(double precision), postrider.disarm(bigint) to %I', relay);

    -- A relay reads the log and keeps its own state. It cannot write an event, and TRUNCATE on the slots is all it needs to turn the rings.
    execute format('grant select on all tables in schema postrider to %I', relay);
    execute format('grant insert on postrider.progress, postrider.sinks, postrider.leases, postrider.identity, postrider.ring, postrider.readers, postrider.in_flight, postrider.parked, postrider.unparked to %I', relay);
    execute format('grant update on postrider.ring, postrider.bell, postrider.readers, postrider.leases, postrider.identity, postrider.sinks, postrider.in_flight, postrider.parked, postrider.unparked to %I', relay);
    execute format('grant delete on postrider.sinks, postrider.leases, postrider.readers, postrider.in_flight, postrider.progress, postrider.parked, postrider.unparked to %I', relay);
    -- Rows of the user's tables on their way through a cascade are none of its business, but for sweeping them.
    execute format('revoke all on postrider.departed from %I', relay);
    execute format('grant delete on postrider.all_departed to %I', relay);
    -- Of what could not be captured it sees how much there is, by a view; it notes which partitions there are.
    execute format('revoke select on postrider.capture_failures, postrider.backfills from %I', relay);
    execute format('grant insert on postrider.all_partitions to %I', relay);
    execute format('grant execute on function postrider.partitions_of(oid) to %I, %I', relay, reader);
    -- It keeps adopted tables; what it may do with those themselves is granted by `postrider apply`, column by column.
    execute format('grant update, delete on postrider.all_adopted to %I', relay);
    execute format('grant insert, update, delete on postrider.keepers to %I', relay);
    -- The inbox turns by a function; an operator may make it forget.
    execute format('grant delete on postrider.inbox to %I', relay);
    execute format('grant update on postrider.inbox_ring to %I', relay);
    -- It reads where the numbering of events stands and cannot move it.
    execute format('grant select on all sequences in schema postrider to %I', relay);
    execute format('grant usage, update on sequence postrider.slot, postrider.progress_slot, postrider.armed, postrider.disarmed, postrider.armed_until to %I', relay);
    execute format('grant execute on function postrider.lanes(), postrider.max_payload(), postrider.schema_version() to %I, %I, %I, %I',
        emit, relay, consume, reader);
    for slot in
        select c.oid::regclass from pg_class c
        where c.relnamespace = 'postrider'::regnamespace and c.relkind = 'r' and c.relispartition
          and c.relname !~ '^inbox_'
    loop
        execute format('grant truncate on %s to %I', slot, relay);
    end loop;

    -- Jobs: whoever may emit may enqueue, a consumer works them off, a relay turns events into them. Their tables are open to nobody,
    -- nor is what a consumer's handlers failed with.
    for routine in
        select p.oid::regprocedure from pg_proc p
        where p.pronamespace = 'postrider'::regnamespace and p.proname in ('enqueue', 'enqueue_many')
    loop
        execute format('grant execute on function %s to %I, %I, %I', routine, emit, consume, relay);
    end loop;
    for routine in
        select p.oid::regprocedure from pg_proc p
        where p.pronamespace = 'postrider'::regnamespace
          and p.proname in ('claim_jobs', 'settle_jobs', 'begin_jobs', 'finish_jobs', 'extend_jobs', 'end_job_worker', 'reap_jobs', 'tend_jobs', 'next_job_at', 'job_lease', 'cancel_job', 'retry_job',
                            'pause_queue', 'set_queue', 'list_jobs', 'list_running_jobs', 'count_ready_jobs', 'take_job_ticket', 'disarm_jobs',
                            'declare_cron', 'due_crons', 'tick_cron')
    loop
        execute format('grant execute on function %s to %I', routine, consume);
    end loop;
    execute format('grant execute on function postrider.list_jobs(text, text, integer), postrider.list_running_jobs(), postrider.count_ready_jobs(text, smallint, integer) to %I', reader);
    execute format('grant select on postrider.job_stats to %I, %I', consume, reader);
    for slot in
        select c.oid::regclass from pg_class c
        where c.relnamespace = 'postrider'::regnamespace and c.relkind in ('r', 'p', 'v', 'S') and (c.relname like 'job%' or c.relname = 'attempts' or c.relname like 'dead\_messages%')
    loop
        execute format('revoke all on %s from %I', slot, relay);
    end loop;

    -- What an operator looks at: where things stand and why, never a payload.
    for routine in
        select p.oid::regprocedure from pg_proc p
        where p.pronamespace = 'postrider'::regnamespace
          and p.proname in ('where_event', 'where_parked', 'where_unparked', 'where_oldest', 'where_sinks')
    loop
        execute format('grant execute on function %s to %I, %I', routine, relay, reader);
    end loop;
    execute format('grant select on postrider.cursors, postrider.backlog, postrider.lag, postrider.stuck, postrider.dead_letters,
        postrider.throughput, postrider.delivery, postrider.slots, postrider.relays, postrider.troubles, postrider.uncaptured, postrider.partitions, postrider.all_partitions, postrider.misfits, postrider.all_misfits, postrider.outbox_troubles, postrider.inbox_state, postrider.consumers to %I', reader);

    -- As it was before: see begin.sql.
    for again in select json_array_elements_text(current_setting('postrider.install.defaults')::json) loop
        execute again;
    end loop;
end
$install$;
