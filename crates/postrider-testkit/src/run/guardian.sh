# Keeps one server no longer than its test run lives.
#
#   stdin   the run's `alive` FIFO: end of file means that the run's owner is gone, even by kill -9
#   stdout  the run's `servers.lock`, share-locked by whoever started us: the janitor waits for it
#   $1      the server's directory
#   $2      signal that stops the server
#   $3      `process` or `group`: who gets that signal
#   $4      seconds until the server is killed
#   rest    the command; it must exec in place, so that $! is the server
set -u
# A guardian ends only after its server. The server itself gets default signals back from `env` below:
# a shell starts background commands with INT and QUIT ignored, and some servers respect that.
trap '' INT TERM HUP QUIT

dir=$1 signal=$2 target=$3 grace=$4
shift 4
cd "$dir" || exit 1
exec 3<&0 </dev/null

# A session of its own: leftovers of a server that starts helpers can be killed as one group.
setsid env --default-signal=INT,TERM,HUP,QUIT "$@" 3<&- >>"$dir/log" 2>&1 &
server=$!
echo "$server" >"$dir/server.pid.new" && mv "$dir/server.pid.new" "$dir/server.pid"

if [ "$target" = group ]; then stop="-$server"; else stop=$server; fi

(
	# Nothing is ever written to the FIFO: this returns at end of file.
	while read -r _ <&3; do :; done
	kill -s "$signal" -- "$stop"
	ticks=$((grace * 10))
	while [ "$ticks" -gt 0 ] && kill -0 "$server"; do
		ticks=$((ticks - 1))
		sleep 0.1
	done
	kill -s KILL -- "$server" "-$server"
) 2>/dev/null &
watcher=$!

wait "$server"
status=$?
# The server is reaped: its pid may be reused from now on, so the watcher must not signal it any more.
kill -s KILL "$watcher"
kill -s KILL -- "-$server" 2>/dev/null
echo "$status" >"$dir/exit.new" && mv "$dir/exit.new" "$dir/exit"
