-- One installer at a time in this database; the others wait here and then find the work done.
select pg_advisory_xact_lock(7310868751);
set local lock_timeout = '10s';
set local client_min_messages = warning;
