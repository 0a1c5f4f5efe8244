-- Appends the complete cursors of one epoch, if that epoch still holds a lane. Its own xid bounds what was read before it began.
--
--   $1 sink, $2 epoch, $3 number, $4 lanes, $5 positions, $6 late positions, $7 snapshots, $8 snapshot_of, $9 target_of,
--   $10 bounds (null: not settled since it was read), $11 how many events this moves past
insert into postrider.progress
    (slot, sink, epoch, number, lanes, positions, late_positions, snapshots, snapshot_of, target_of, bounds, events)
select coalesce(pg_sequence_last_value('postrider.progress_slot'), 0) & 3,
       $1, $2, $3, $4::smallint[], $5::bigint[], $6::bigint[], $7::text[]::pg_snapshot[], $8::integer[], $9::integer[],
       array(select coalesce(bound::xid8, pg_current_xact_id()) from unnest($10::text[]) with ordinality as b (bound, place) order by place),
       $11
where exists (select from postrider.leases l where l.sink = $1 and l.epoch = $2)
  -- The newest row of an epoch is all there is of its cursors: one that is left out could not be found again.
  and not exists (select from postrider.leases l where l.sink = $1 and l.epoch = $2 and l.lane <> all ($4::smallint[]))
returning pg_current_xact_id()::text as bound,
          array(select l.lane from postrider.leases l where l.sink = $1 and l.epoch = $2 order by l.lane) as lanes
