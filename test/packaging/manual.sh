#!/bin/sh
# SPDX-License-Identifier: MIT
#
# manual.sh - the manual in HTML is whole: every page is there, every reference
# leads somewhere, nothing is loaded from elsewhere, and the search finds options.
. "$(dirname "$0")/../cli/lib.sh"
top=$(cd "$(dirname "$0")/../.." && pwd)

out=$("$top/scripts/html-manual" "$tmp/html" 2>&1)
ok 'no reference leads nowhere'
has 'it says so' ', 0 dead links' "$out"
is 'each page is there' "$(ls "$top"/doc/man/*.[137] | wc -l)" \
    "$(ls "$tmp"/html/*.[137].html | wc -l)"
is 'nothing comes from elsewhere' '' "$(grep -h 'src=' "$tmp"/html/*.html | head -n 1)"
has 'the search knows an option of run' '--min-hold' "$(cat "$tmp/html/index.html")"
has 'it knows a function that has no page of its own' hf_acquire_all \
    "$(cat "$tmp/html/index.html")"

# The search box, in a browser: a word after # is searched for.
if command -v chromium >/dev/null; then
    shown() {
        HOME=$tmp timeout 60 chromium --headless --no-sandbox --disable-gpu --dump-dom \
            "file://$tmp/html/index.html#$1" 2>"$tmp/browser"
    }
    page=$(shown min-hold)
    has 'the search finds the option' 'href="holdfast.1.html#min-hold"' \
        "$(echo "$page" | grep -o '<ul id="hits">.*')"
    has 'and hides the list of pages' '<ul id="pages" hidden' "$page"
    has 'nothing is found of a word that is nowhere' '>0 places<' "$(shown nosuchword)"
else
    skip 'the search in a browser' 'chromium is missing'
fi

# A page with a dead reference is found.
cp -r "$top/doc" "$top/scripts" "$tmp/"
printf '.Sx NOWHERE\n' >>"$tmp/doc/man/hf_held.3"
! "$tmp/scripts/html-manual" "$tmp/other" >/dev/null 2>"$tmp/why"
ok 'a dead reference is an error'
has 'which names the page' 'hf_held.3.html' "$(cat "$tmp/why")"
finish
