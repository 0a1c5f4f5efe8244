-- Which parked events are meant. A null says nothing.
--   $1 sink, $2 ids (as text: source ids too), $3 key, $4 type (a LIKE pattern), $5 kind or words of the reason, $6 parked since,
--   $7 parked before, $8 also those that are not dead, $9 place to begin behind, $10 last place
where ($1::text is null or s.name = $1)
  and ($2::text[] is null or p.id::text = any ($2) or p.source_id = any ($2))
  and ($3::text is null or p.key = $3)
  and ($4::text is null or p.type like $4)
  and ($5::text is null or p.kind = $5 or position(lower($5) in lower(p.reason)) > 0)
  and ($6::timestamptz is null or p.parked_at >= $6)
  and ($7::timestamptz is null or p.parked_at < $7)
  and ($8::boolean or p.state = 'dead')
  and p.place > $9::bigint and p.place <= $10::bigint
