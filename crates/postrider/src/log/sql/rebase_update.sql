-- 3: older than everything, delivered as far as its seq says. 4: late for the cursors whose snapshot is 4:4:, see rebase.rs.
-- What was written below the oldest running transaction and is in its place stays as it is: no snapshot will ask for it again.
--
--   $3 how many seqs above $2 are kept for moved rows
, updated as (
    update postrider.events e
    set xid = case when o.place is null then '3' else '4' end::xid8,
        seq = case when m.place is null then e.seq when m.rank <= $3 then $2 + m.rank else nextval('postrider.seq') end
    from written w
    left join moved m on m.part = w.part and m.place = w.place
    left join (select distinct o.part, o.place from open o) o on o.part = w.part and o.place = w.place
    where e.tableoid = w.part and e.ctid = w.place
      and (m.place is not null or o.place is not null or w.xid = '4'::xid8 or w.xid >= pg_snapshot_xmin(pg_current_snapshot()))
    returning 1
)
