# SPDX-License-Identifier: MIT
#
# mux.sh - a terminal for the tests of `holdfast top`, that of a private tmux.
# Sourced behind lib.sh.

if ! command -v tmux >/dev/null; then
    skip 'holdfast top' 'there is no tmux'
    finish
fi
unset TMUX
trap 'mux kill-server 2>/dev/null
    [ -z "$server" ] || kill -KILL $server 2>/dev/null; rm -rf "$tmp"' EXIT
socket=$tmp/mux
mux() { tmux -f /dev/null -S "$socket" "$@"; }
screen() { mux capture-pane -p -t top 2>/dev/null; }
shows() { screen | grep -q -e "$1"; }
gone() { ! shows "$1"; }
press() { mux send-keys -t top "$@"; }

# begin [VARIABLE=VALUE...]: a shell of 80x24 in which top runs.  What it says
# when that is over tells how, and whether the terminal is as it was.
begin() {
    begin_script
    begin_shell "$@"
}
begin_script() {
    cat >"$tmp/shell" <<'END'
trap : INT
before=$(stty -g)
modes() { [ "$(stty -g)" = "$before" ] && echo 'modes as before' || echo 'other modes'; }
"$HOLDFAST" top -i 0.1 2>"$0.err"
status=$?
echo "ended with $status, $(modes)"
exec sleep 1000
END
}
begin_shell() {
    mux kill-server 2>/dev/null
    socket=$socket. # that of the last one may still be there
    mux new-session -d -x 80 -y 24 -s top env TERM=screen "$@" sh "$tmp/shell"
}
top_pid() {
    for pid in $(pgrep -f 'holdfast-top -i 0.1$'); do
        tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null |
            grep -qx "HOLDFAST_URL=$HOLDFAST_URL" && echo "$pid" && return
    done
    return 1
}
