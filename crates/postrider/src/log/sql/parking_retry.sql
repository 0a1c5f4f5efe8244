-- Due at once, with all attempts before them; what was is kept. $1 places
update postrider.parked p
set state = 'waiting', attempts = 0, next_attempt_at = clock_timestamp()
where p.place = any ($1)
