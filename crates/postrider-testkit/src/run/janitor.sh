# Removes a test run's directory when the run's owner is gone and the last guardian has stopped its server.
#
#   stdin   the run's `alive` FIFO
#   $1      the run's directory
set -u
trap '' INT TERM HUP QUIT
run=$1
cd / || exit 1

while read -r _; do :; done

# Every guardian holds a shared lock on this file for as long as it lives.
flock --exclusive --wait 60 "$run/servers.lock" true

# A server killed the hard way may have children that still write for a moment.
tries=50
until rm -rf "$run" || [ "$tries" -eq 0 ]; do
	tries=$((tries - 1))
	sleep 0.1
done
